package cluster

import (
	"errors"
	"fmt"
	"log/slog"

	"github.com/hashicorp/raft"

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
func Recover(store Store, self ring.NodeID, address string, log *slog.Logger) error {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	cfg := DefaultConfig()
	cfg.Self.ID, cfg.Logger = self, log
	rc := raftConfig(&cfg, nil)
	_, transport := raft.NewInmemTransport(raft.ServerAddress("recovery"))
	conf, err := raft.GetConfiguration(raftConfig(&cfg, nil), newMachine(func() {}), store.Logs(), store.Stable(),
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
	err = raft.RecoverCluster(rc, newMachine(func() {}), store.Logs(), store.Stable(), store.Snapshots(), transport, one)
	if err != nil {
		return errors.Join(errors.New("make this node the only voter"), err)
	}
	log.Info("this node is the only voter now", "node", self, "before", len(conf.Servers))
	return nil
}
