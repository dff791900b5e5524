//go:build ignore

// Mkzones makes zones.zip from the time zones that come with Go: go generate
// ./algorithms. Afterwards, set ZonesVersion to DATA in Go's
// lib/time/update.bash. Nodes with different zones end windows at different
// times, so the release notes must mention a new file.
package main

import (
	"archive/zip"
	"bytes"
	"compress/flate"
	"io"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func main() {
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		log.Fatal(err)
	}

	in, err := zip.OpenReader(filepath.Join(strings.TrimSpace(string(root)), "lib/time/zoneinfo.zip"))
	if err != nil {
		log.Fatal(err)
	}

	var file bytes.Buffer
	out := zip.NewWriter(&file)
	out.RegisterCompressor(zip.Deflate,
		func(w io.Writer) (io.WriteCloser, error) { return flate.NewWriter(w, flate.BestCompression) })

	for _, f := range in.File {
		if strings.HasSuffix(f.Name, "/") {
			continue
		}

		r, err := f.Open()
		if err != nil {
			log.Fatal(err)
		}

		w, err := out.CreateHeader(&zip.FileHeader{Name: f.Name, Method: zip.Deflate})
		if err != nil {
			log.Fatal(err)
		}
		if _, err := io.Copy(w, r); err != nil {
			log.Fatal(err)
		}
	}

	if err := out.Close(); err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile("zones.zip", file.Bytes(), 0o644); err != nil {
		log.Fatal(err)
	}
}
