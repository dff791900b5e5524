package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"runtime"
	"strings"

	"github.com/rlnode/rlnode/internal/yaml"
)

// Bits of a file's mode that let others in.
const (
	groupWrites  fs.FileMode = 0o020
	othersRead   fs.FileMode = 0o004
	othersWrite  fs.FileMode = 0o002
	othersSearch fs.FileMode = 0o001
)

// checkFiles warns, as ssh does, of files that other users of the machine may
// read or write but must not. With --strict-files, it returns an error instead.
func (c *serveCmd) checkFiles(log *slog.Logger) error {
	if runtime.GOOS == "windows" {
		return nil // its modes say nothing
	}
	var errs []error
	report := func(flag, path string, mode fs.FileMode, why string) {
		if c.StrictFiles {
			errs = append(errs,
				fmt.Errorf("%s: %s has mode %04o, so that %s: --strict-files refuses that", flag,
					path, mode.Perm(), why))
			return
		}
		log.Warn("other users of this machine "+why, "flag", flag, "file", path,
			"mode", fmt.Sprintf("%04o", mode.Perm()))
	}

	type file struct{ flag, path string }
	secrets := []file{
		{"--cluster-secret-file", c.ClusterSecretFile}, {"--gossip-key-file", c.GossipKeyFile},
		{"--tls-key", c.TLSKey}, {"--http-key", c.HTTPKey},
		{"--admin-token-file", c.AdminTokenFile}, {"--api-token-file", c.APITokenFile},
	}
	// These hold no secret, but their writers decide who may do what.
	publics := []file{
		{"--tokens-file", c.TokensFile}, {"--tls-ca", c.TLSCA}, {"--tls-cert", c.TLSCert}, {"--http-cert", c.HTTPCert},
	}
	settings := file{"--config", c.Config}
	if holdsSecret(c.Config) {
		secrets = append(secrets, settings)
	} else {
		publics = append(publics, settings)
	}

	// Kubernetes gives secrets to a group, so a group may read.
	for _, secret := range secrets {
		mode := modeOf(secret.path)
		switch {
		case mode&(groupWrites|othersWrite) != 0:
			report(secret.flag, secret.path, mode, "may write this secret")
		case mode&othersRead != 0:
			report(secret.flag, secret.path, mode, "may read this secret")
		}
	}

	for _, public := range publics {
		mode := modeOf(public.path)
		if mode&(groupWrites|othersWrite) != 0 {
			report(public.flag, public.path, mode, "may write this file")
		}
	}

	// If the sticky bit is set, as in /tmp, others may still put files there.
	mode := modeOf(c.DataDir)
	if mode&othersWrite != 0 && mode&othersSearch != 0 {
		report("--data-dir", c.DataDir, mode, "may write to the data directory")
	}
	if len(errs) > 0 {
		return &exitError{code: exitUsage, err: errors.Join(errs...)}
	}
	return nil
}

// holdsSecret reports whether a file of settings has a secret itself, rather
// than the name of its file.
func holdsSecret(path string) bool {
	src, err := os.ReadFile(path)
	if err != nil {
		return false // the reader of the file reports the error
	}
	root, err := yaml.Parse(string(src))
	if err != nil {
		return false
	}

	for key := range root.Pairs {
		if isSecret("--"+key.Text) && !strings.HasSuffix(key.Text, "-file") {
			return true
		}
	}

	return false
}

// modeOf returns the mode of the file that path leads to; 0 if there is none.
func modeOf(path string) fs.FileMode {
	if path == "" {
		return 0
	}
	info, err := os.Stat(path)
	if err != nil {
		return 0 // the reader of the file reports the error
	}
	return info.Mode()
}
