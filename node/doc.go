// Package node runs a node of rlnode: as the program rlnode serve does, or inside another Go program.
//
//	n, err := node.Start(ctx, node.Config{Rules: rules})
//	if err != nil {
//		return err
//	}
//	defer n.Close()
//	if err := n.WaitReady(ctx); err != nil {
//		return err
//	}
//	d, err := n.Check(ctx, client.Request{Attributes: map[string]string{"ip": "198.51.100.7"}})
//
// An embedded node is a member of its cluster like any other: it owns a part of the counters, decides what it owns without a
// call, and asks the others for the rest. Requests and decisions are those of package client, so [client.Middleware] takes a
// Node in place of a Client. Without ClusterBind it is by itself and opens no port.
//
// A node needs no process of its own: it handles no signals, sets no umask, no default logger and no other default of the
// process, and several nodes may be in one program. Two things its libraries leave no choice about: when Raft can't read an entry
// of its own log that it has to apply, it panics; and a data directory has to be made by the node, or be readable by its user
// alone, since files in it are as readable as the process's umask has it.
//
// # Order
//
// [Start] makes all parts first, has each of them register the calls of other nodes that it answers, and starts them then; see
// build. So no part ever meets another one that is not there yet. [Node.Close] ends them the other way round.
package node
