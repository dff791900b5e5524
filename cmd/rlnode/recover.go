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
	DataDir string  `required:"" type:"path" env:"RLNODE_DATA_DIR" placeholder:"DIR" help:"The data directory of the surviving node from which the cluster continues."`
	Skip    *uint64 `placeholder:"INDEX" help:"Only remove the entry with this index from the node's log; needs --hash."`
	Hash    string  `placeholder:"H" help:"The entry's hash, as logged by a node that can't apply it."`
	Address string  `placeholder:"HOST:PORT" help:"The address for calls from other nodes: the node's --advertise and --peer-port (default: unchanged)."`
}

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
		_, err := os.Stat(filepath.Join(c.DataDir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("%s is not the data directory of a node: %w", c.DataDir, err)
		}
	}

	log := slog.New(slog.NewTextHandler(env.stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))
	self, err := persist.OpenDir(c.DataDir)
	if err != nil {
		return err
	}

	config := persist.DefaultRaftConfig()
	config.Dir = c.DataDir
	config.Logger = log
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

	if c.Skip != nil {
		if err := cluster.Skip(store, node.ThisBuild(), *c.Skip, hash); err != nil {
			return err
		}
		_, err = fmt.Fprintf(env.stdout,
			"entry %d is removed from the log of node %s: do the same on each node that has it, then start them\n",
			*c.Skip, self)
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
	case c.Skip == nil && c.Hash == "":
		return hash, nil
	case c.Skip == nil || c.Hash == "":
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
