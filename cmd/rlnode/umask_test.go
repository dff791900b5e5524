//go:build unix

package main

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
	"github.com/rlnode/rlnode/internal/process"
)

const billed = "version: 1\nrules:\n  - {name: bills, key: [ip], usage: monthly, limits: [{limit: 100, per: 1m}]}\n"

// No file created by a node or a command is readable for others, regardless of
// the shell's umask and the directories' modes. The library sets the mode of
// Raft's snapshots.
func TestFilesAreTheNodesOwn(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	made := map[string]string{} // directories that anyone may read, as a careless operator creates them
	for _, name := range []string{"data", "out"} {
		made[name] = filepath.Join(dir, name)
		expect.NoError(t, os.Mkdir(made[name], 0o755))
		expect.NoError(t, os.Chmod(made[name], 0o755))
	}
	// shell runs the node's program as a shell with a careless umask does.
	shell := func(env []string, args ...string) *exec.Cmd {
		cmd := exec.Command("/bin/sh", append([]string{"-c", `umask 0022; exec "$0" "$@"`, binary}, args...)...)
		cmd.Env = cleanEnv(env...)
		return cmd
	}
	command := func(args ...string) {
		t.Helper()
		if out, err := shell(nil, args...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}

	log := &process.Output{}
	serve := shell(nil, "serve", "--rules", file(t, "bills.yaml", billed), "--data-dir",
		made["data"], "--bind", "127.0.0.1", "--http-port", "0", "--admin-port", "0",
		"--gossip-port", "0", "--peer-port", "0")
	serve.Stdout, serve.Stderr = log, log
	expect.NoError(t, serve.Start())
	defer serve.Wait()
	defer serve.Process.Kill() // if it still runs
	var data, admin string
	process.Eventually(t, "the node is ready", func() (ok bool) { data, admin, ok = log.Ready(); return ok })
	command("check", "--addr", data, "--rule", "bills", "--key", "k")
	command("backup", "--admin", admin, "-o", filepath.Join(made["out"], "backup.json"))
	record := file(t, "log.json", `{"time": "2015-05-17T10:05:09Z", "attributes": {"ip": "198.51.100.7"}}`+"\n")
	command("replay", "--rules", file(t, "rules.yaml", yearRules(1)), "--decisions",
		filepath.Join(made["out"], "decisions.json"), record)
	process.Eventually(t, "the node has files for usage and for the applied log", func() bool {
		_, err := os.Stat(filepath.Join(made["data"], "applied"))
		_, missing := os.Stat(filepath.Join(made["data"], "usage.db"))
		return errors.Join(err, missing) == nil
	})
	checkPrivate(t, made)
	expect.NoError(t, serve.Process.Signal(os.Interrupt))
	if err := serve.Wait(); err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	command("recover", "--data-dir", made["data"]) // it makes a snapshot
	if states, err := filepath.Glob(filepath.Join(made["data"], "snapshots", "*",
		"state.bin")); err != nil || len(states) == 0 {
		t.Errorf("no snapshot: %v", err)
	}
	checkPrivate(t, made)
}

// checkPrivate fails if others may read anything in directories that they may enter.
func checkPrivate(t *testing.T, dirs map[string]string) {
	t.Helper()
	files := 0
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if errors.Is(err, fs.ErrNotExist) || path == dir {
				return nil // the running node has just removed it
			}
			if err != nil {
				return err
			}
			info, err := d.Info()
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				return err
			}
			files++
			if info.Mode().Perm()&0o077 != 0 {
				t.Errorf("%s: others have access: %v", path, info.Mode())
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
	if files < 8 {
		t.Errorf("only %d files", files)
	}
}
