package cluster

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/cluster/raftio"
	"github.com/rlnode/rlnode/ring"
)

// Recover makes a node the only voter of its cluster. Use it when the majority
// is gone for good. The node must not be running: store is its Raft state,
// which the caller opens and closes. Everything in the node's log then counts
// as agreed on, so choose the node with the longest log. Entries that only
// other nodes had are lost.
//
// address is the host:port at which the node accepts calls; if empty, Recover
// uses the address in the node's configuration. Once started, the node finds
// the other survivors through gossip and adds them again. A survivor whose log
// is not longer than this node's can keep its data directory. A survivor that
// has applied entries that this node never had must start with a new directory,
// because applied entries can't be undone. Never recover two nodes of one
// cluster: that makes two clusters with one ID.
//
// build must be able to read the whole log: see Skip.
func Recover(store Store, build agreement.Build, self ring.NodeID, address string, log *slog.Logger) error {
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	config := DefaultConfig()
	config.Self.ID = self
	config.Logger = log
	_, transport := raft.NewInmemTransport(raft.ServerAddress("recovery"))

	// GetConfiguration sets a private field of its Config, by which Raft would start
	// nothing. RecoverCluster therefore gets a Config of its own.
	conf, err := raft.GetConfiguration(raftConfig(&config), newMachine(build, func() {}), store.Logs(), store.Stable(),
		store.Snapshots(), transport)
	if err != nil {
		return fmt.Errorf("read Raft's configuration: %w", err)
	}

	id := raftio.ServerID(self)
	server, ok := findServer(conf, id)
	if address == "" && !ok {
		return fmt.Errorf("recover node %s: %w: it is not in Raft's configuration: give its address", self, ErrNotFound)
	}

	if address != "" {
		server.Address = raft.ServerAddress(address)
	}

	onlyVoter := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: id, Address: server.Address}}}
	err = raft.RecoverCluster(raftConfig(&config), newMachine(build, func() {}), store.Logs(), store.Stable(),
		store.Snapshots(), transport, onlyVoter)
	if err != nil {
		return fmt.Errorf("make this node the only voter: %w", err)
	}

	log.Info("this node is now the only voter", "node", self, "before", len(conf.Servers))
	return nil
}

// Skip replaces, in a node's log, an entry that no node can apply with an
// [agreement.Skipped], which changes nothing. hash is the entry's SHA-256. If
// another entry is there, or a snapshot shows that the node has applied the
// entry, the error wraps ErrRefused. The node must not be running. Do this on
// every node that has the entry in its log. A node that has applied the entry
// must not remain in the cluster: its state would differ from that of the other
// nodes.
func Skip(store Store, build agreement.Build, index uint64, hash [32]byte) error {
	list, err := store.Snapshots().List()
	if err != nil {
		return fmt.Errorf("list snapshots: %w", err)
	}

	for _, meta := range list {
		if meta.Index >= index {
			return fmt.Errorf("skip entry %d: %w: this node has applied it, and has a snapshot of entry %d", index, ErrRefused, meta.Index)
		}
	}

	var l raft.Log
	if err := store.Logs().GetLog(index, &l); err != nil {
		return fmt.Errorf("read entry %d of the log: %w", index, err)
	}
	if l.Type != raft.LogCommand {
		return fmt.Errorf("skip entry %d: %w: it is an entry of Raft itself", index, ErrRefused)
	}

	have := sha256.Sum256(l.Data)
	if have != hash {
		return fmt.Errorf("skip entry %d: %w: its hash is %x", index, ErrRefused, have)
	}

	l.Data, err = build.Encode(agreement.Skipped{Hash: hash[:]})
	if err != nil {
		return err
	}
	if err := store.Logs().StoreLog(&l); err != nil {
		return fmt.Errorf("replace entry %d of the log: %w", index, err)
	}

	return nil
}
