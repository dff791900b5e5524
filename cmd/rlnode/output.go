package main

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/rlnode/rlnode/persist"
)

// writeOutput writes a file that the user has named. A regular file is replaced
// atomically; a symbolic link stays, and what it points to is replaced. Anything
// else, such as a pipe or a device, is written into.
func writeOutput(name string, content []byte) error {
	info, err := os.Stat(name)
	if errors.Is(err, fs.ErrNotExist) {
		return createOutput(name, content)
	}
	if err != nil {
		return err
	}

	if !info.Mode().IsRegular() {
		return writeInto(name, content)
	}

	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return err
	}
	return persist.ReplaceFile(target, content)
}

// createOutput writes a file that does not exist yet. If name is a link to such
// a file, it creates that file.
func createOutput(name string, content []byte) error {
	_, err := os.Lstat(name)
	if err == nil {
		return os.WriteFile(name, content, 0o600)
	}
	return persist.ReplaceFile(name, content)
}

// writeInto writes into what is there already.
func writeInto(name string, content []byte) error {
	f, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.Write(content)
	return errors.Join(err, f.Close())
}
