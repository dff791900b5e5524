package cluster

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

	"github.com/rlnode/rlnode/cluster/agreement"
	"github.com/rlnode/rlnode/ring"
)

// Recover makes a node the only voter of its cluster, when the majority is gone for good. The node must not run: store is
// its Raft state, which the caller opens and closes. Everything in its log counts as agreed then, so it should be the
// node that is the furthest; what only others had is lost.
//
// Address is where the node takes calls, host:port; empty: what its configuration says. When the node has been started
// it finds the other survivors by gossip and adds them again. A survivor whose log is no longer than this node's goes on
// with its data directory; one that has applied what this node never had must begin with an empty one, for entries
// are never taken back. Two nodes must never be recovered from one cluster: that makes two clusters with one ID.
//
// All of its log has to be readable by build: see Skip.
func Recover(store Store, build agreement.Build, self ring.NodeID, address string, log *slog.Logger) error {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg := DefaultConfig()
	cfg.Self.ID, cfg.Logger = self, log
	rc := raftConfig(&cfg)
	_, transport := raft.NewInmemTransport(raft.ServerAddress("recovery"))
	conf, err := raft.GetConfiguration(raftConfig(&cfg), newMachine(build, func() {}), store.Logs(), store.Stable(),
		store.Snapshots(), transport)
	if err != nil {
		return fmt.Errorf("read Raft's configuration: %w", err)
	}
	id := serverID(self)
	server, ok := findServer(conf, id)
	if address == "" && !ok {
		return fmt.Errorf("recover node %s: %w in the configuration: say its address", self, ErrNotFound)
	}
	if address != "" {
		server.Address = raft.ServerAddress(address)
	}
	one := raft.Configuration{Servers: []raft.Server{{Suffrage: raft.Voter, ID: id, Address: server.Address}}}
	err = raft.RecoverCluster(rc, newMachine(build, func() {}), store.Logs(), store.Stable(), store.Snapshots(), transport, one)
	if err != nil {
		return errors.Join(errors.New("make this node the only voter"), err)
	}
	log.Info("this node is the only voter now", "node", self, "before", len(conf.Servers))
	return nil
}

// Skip takes an entry that nobody can apply out of a node's log: a [agreement.Skipped] stands in its place, which changes
// nothing. Hash is the entry's SHA-256, so that no other entry is taken for it. The node must not run. Each node that has
// the entry in its log needs this, and none that has applied it may stay: it would have another state than the others.
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
		return fmt.Errorf("skip entry %d: %w: it is Raft's own", index, ErrRefused)
	}
	if have := sha256.Sum256(l.Data); have != hash {
		return fmt.Errorf("skip entry %d: %w: its hash is %x", index, ErrRefused, have)
	}
	if l.Data, err = build.Encode(agreement.Skipped{Hash: hash[:]}); err != nil {
		return err
	}
	if err := store.Logs().StoreLog(&l); err != nil {
		return fmt.Errorf("replace entry %d of the log: %w", index, err)
	}
	return nil
}
