package main

import (
	"archive/tar"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
)

// archiveFiles lists the files that an archive has besides the binary.
var archiveFiles = []string{
	"README.md", "CHANGELOG.md", "SECURITY.md", "deploy/systemd/rlnode.service",
	"deploy/systemd/rlnode.yaml", "deploy/compose/rules.yaml",
}

// writeArchive writes a compressed archive with the binary and archiveFiles.
func (r *release) writeArchive(p platform, binary string) error {
	f, err := os.Create(filepath.Join(r.out, r.name(p)+".tar.gz"))
	if err != nil {
		return err
	}

	defer f.Close()

	zipped, err := gzip.NewWriterLevel(f, gzip.BestCompression)
	if err != nil {
		return err
	}

	out := tar.NewWriter(zipped)
	add := func(from, name string, mode int64) error {
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}

		err = out.WriteHeader(&tar.Header{
			Name: r.name(p) + "/" + name, Mode: mode, Size: int64(len(text)), ModTime: r.date,
			Format: tar.FormatPAX, Uname: "root", Gname: "root",
		})
		if err == nil {
			_, err = out.Write(text)
		}

		return err
	}
	if err := add(binary, "rlnode", 0o755); err != nil {
		return err
	}

	for _, name := range archiveFiles {
		if err := add(r.path(name), filepath.Base(name), 0o644); err != nil {
			return err
		}
	}

	for _, c := range []io.Closer{out, zipped, f} {
		if err := c.Close(); err != nil {
			return err
		}
	}

	return nil
}
