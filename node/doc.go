// Package node runs an rlnode node: as the program rlnode serve does, or
// embedded in another Go program.
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
// An embedded node is a full member of its cluster. It owns some of the
// counters, decides checks of those locally, and asks the other nodes about the
// rest. Requests and decisions are those of package client, so
// [client.Middleware] takes a Node in place of a Client. Without ClusterBind
// the node runs alone and opens no ports between nodes.
//
// A node doesn't need a process of its own. It handles no signals and leaves
// the umask, the default logger and all other process-wide defaults alone. One
// program may run several nodes. There are two exceptions, both due to
// libraries. Raft panics when it has to apply an entry of its own log and can't
// read the entry. And files in the data directory get the permissions that the
// process's umask allows. So let the node create the directory, or make it
// readable by the node's user alone.
//
// # Order
//
// [Start] first makes all parts, lets each register the calls it answers for
// other nodes, and only then starts them; see build. So no part ever calls one
// that doesn't exist yet. [Node.Close] stops the parts in reverse order, with
// one exception: the cluster ends before the parts that it notifies.
//
// # Files
//
// From the bottom up:
//
//   - version.go, config.go, settings.go: this build, and what it is told;
//     alone.go, storage.go, environment.go, protection.go: what a node depends on
//     outside itself;
//   - release.go, usage.go, regions.go, counterfiles.go, tracing.go: parts that are
//     opened and closed, and what they keep on disk;
//   - adapt.go, clockoffset.go, clockwatch.go, sweeper.go, recent.go, vitals.go:
//     what a node watches, and does again and again;
//   - node.go: the node, which has all of these; history.go: what it counts, to be
//     kept; stop.go: its end;
//   - build.go, ready.go, adminview.go, doors.go, start.go: its parts are made, it
//     becomes ready, and its doors open;
//   - inquiry.go, decision.go, check.go, slots.go: calls of the program that embeds
//     it: requests that become queries, answers, checks, and slots.
package node
