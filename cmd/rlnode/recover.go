package main

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/node"
	"github.com/rlnode/rlnode/persist"
)

// recoverCmd makes a surviving node the only voter of its cluster.
type recoverCmd struct {
	DataDir string `required:"" type:"path" env:"RLNODE_DATA_DIR" placeholder:"DIR" help:"The data directory of the surviving node from which the cluster continues."`
	Skip    uint64 `placeholder:"INDEX" help:"Only remove the entry with this index from the node's log; needs --hash."`
	Hash    string `placeholder:"H" help:"The entry's hash, as logged by a node that can't apply it."`
	Address string `placeholder:"HOST:PORT" help:"The address for calls from other nodes: the node's --advertise and --peer-port (default: unchanged)."`
}

// Help implements kong.HelpProvider. It explains what recovering loses.
func (recoverCmd) Help() string {
	return `For a cluster that has lost the majority of its voters for good, and so can't agree on anything: one surviving node
becomes the only voter, and the other survivors join it. If the lost nodes can come back with their disks, start them
instead: then nothing is lost, and the cluster continues without this command.

What is lost: changes of the rules that the last majority had agreed on and this node had not received, and counters of
which no survivor has a copy. So choose the survivor with the longest log: the survivors still answer, and
rlnode_raft_last_index at /metrics on their admin planes shows it. Changes that this node had received but the lost
majority had not agreed on become agreed.

  1. Stop all survivors.
  2. Run rlnode recover on ONE of them. Never on two: that would make two clusters that mistake each other for one.
  3. Start that node as before. It is ready within seconds, and accepts changes of the rules.
  4. Start the other survivors, one after another. They find it by gossip and are members again. One that does not
     become ready, or logs that it has entries the cluster never agreed on, must start with a new data directory. Keep
     the old one: it has what that node counted for bills.
  5. Start replacements for the lost nodes with new data directories, never with an old disk.
  6. Run rlnode remove for the IDs of the lost nodes, which members shows as failed.

An entry that no node can apply stops every node at the same place; each logs its index and hash, and which release could
read it. If no release can, stop all nodes, run rlnode recover --skip INDEX --hash H on each, and start them again. That
changes nothing else. If any node has applied the entry, don't skip it: run that node's release on the others.

Stop the node first. The command changes its data directory at once, without asking: copy it before.

Examples:

  rlnode recover --data-dir /var/lib/rlnode
  rlnode recover --data-dir /var/lib/rlnode --address 10.0.0.9:7947
  rlnode recover --data-dir /var/lib/rlnode --skip 8120 --hash 5feceb66ffc8…`
}

// Run changes the data directory.
func (c *recoverCmd) Run(env *environment) (err error) {
	if err := checkPeerAddress(c.Address); err != nil {
		return usageError("--address: %w", err)
	}

	hash, err := c.skippedHash()
	if err != nil {
		return usageError("%w", err)
	}

	// Opening the store of a node that doesn't exist would create one.
	for _, name := range []string{"", "node.json", "raft.db"} {
		if _, err := os.Stat(filepath.Join(c.DataDir, name)); errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is not the data directory of a node: %w", c.DataDir, err)
		}
	}

	log := slog.New(slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	self, err := persist.OpenDir(c.DataDir)
	if err != nil {
		return err
	}

	config := persist.DefaultRaftConfig()
	config.Dir, config.Logger = c.DataDir, log
	store, err := persist.OpenRaft(config)
	if errors.Is(err, persist.ErrInUse) {
		return fmt.Errorf("%w: stop the node first", err)
	}
	if err != nil {
		return err
	}

	defer func() { err = errors.Join(err, store.Close()) }()

	empty, err := store.Empty()
	if err != nil {
		return err
	}
	if empty {
		return fmt.Errorf("%s: this node has never been part of a cluster, so there is nothing to recover", c.DataDir)
	}

	if c.Skip != 0 {
		if err := cluster.Skip(store, node.ThisBuild(), c.Skip, hash); err != nil {
			return err
		}
		_, err = fmt.Fprintf(env.stdout, "entry %d is removed from the log of node %s: do the same on each node that has it, then start them\n", c.Skip, self)
		return err
	}

	if err := cluster.Recover(store, node.ThisBuild(), self, c.Address, log); err != nil {
		return err
	}

	_, err = fmt.Fprintf(env.stdout, "node %s is now the only voter of its cluster: start it, then the others\n", self)
	return err
}

// skippedHash returns --hash, checked against --skip.
func (c *recoverCmd) skippedHash() (hash [sha256.Size]byte, err error) {
	switch {
	case c.Skip == 0 && c.Hash == "":
		return hash, nil
	case c.Skip == 0 || c.Hash == "":
		return hash, errors.New("--skip and --hash must be set together")
	case c.Address != "":
		return hash, errors.New("--address excludes --skip, which changes only the log")
	}

	b, err := hex.DecodeString(c.Hash)
	if err != nil || len(b) != len(hash) {
		return hash, fmt.Errorf("--hash: %.80q is not %d hexadecimal digits", c.Hash, 2*len(hash))
	}

	return [sha256.Size]byte(b), nil
}

// checkPeerAddress checks host:port. An empty address is valid.
func checkPeerAddress(address string) error {
	if address == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil || net.ParseIP(host) == nil {
		return fmt.Errorf("%q is not IP:port", address)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("%q has the port %q, which is not in 1…65535", address, port)
	}
	return nil
}
