package persist

import (
	"errors"
	"os"
	"path/filepath"
)

// ReplaceFile replaces a file atomically: it writes the content to another file
// first, and then renames that file. Even after a crash, the file has either
// the old content or the new. Only its owner may read it. ReplaceFile does not
// sync the directory: a power failure shortly after it may bring the old
// content back. For a file that must not go back, see [SmallFile.WriteSynced].
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
	err = errors.Join(err, f.Sync(), f.Close())
	if err != nil {
		return err
	}

	return os.Rename(f.Name(), name)
}
