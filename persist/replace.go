package persist

import (
	"errors"
	"os"
	"path/filepath"
)

// ReplaceFile writes a file that is whole or as before, whatever happens meanwhile: it is written under another name first. Only
// its owner may read it.
func ReplaceFile(name string, content []byte) (err error) {
	f, err := os.CreateTemp(filepath.Dir(name), "."+filepath.Base(name)+"-*") // mode 0600
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(f.Name()))
		}
	}()
	_, err = f.Write(content)
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	return os.Rename(f.Name(), name)
}
