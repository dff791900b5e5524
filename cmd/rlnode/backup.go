package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/internal/wire"
	"github.com/rlnode/rlnode/rules/document"
)

// backup is the file that the command backup writes: the rules in force as one
// text, and their origin.
type backup struct {
	Format   string          `json:"format"` // backupFormat
	TakenAt  time.Time       `json:"taken_at"`
	From     string          `json:"from"`     // address of the node
	Version  int64           `json:"version"`  // of the rules
	SHA256   string          `json:"sha256"`   // of Rules, in hex
	Rules    string          `json:"rules"`    // the document, YAML
	Versions json.RawMessage `json:"versions"` // the list of versions at the time of the backup, newest first

	EntriesVersion int64              `json:"entries_version"`
	Entries        []*admin.EntryItem `json:"entries"` // beside the rules
}

const backupFormat = "rlnode-backup-1"

// maxBackup bounds a backup file, in bytes. A document of 8 MiB and 100,000
// entries fit even with every byte escaped.
const maxBackup = 192 << 20

func checksum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// backupCmd saves the rules.
type backupCmd struct {
	Output string `short:"o" default:"-" placeholder:"FILE" help:"File to write; - is standard output (default)."`
	adminPlane
}

func (c *backupCmd) Run(env *environment) error {
	n, err := c.client()
	if err != nil {
		return err
	}

	doc, err := n.send(env.ctx, request{path: "/v1/rules", accept: "application/yaml"})
	if err != nil {
		return err
	}

	doc.warnStale(env)
	tag := doc.header.Get("ETag")
	version, err := strconv.ParseInt(strings.Trim(strings.TrimPrefix(tag, "W/"), `"`), 10, 64)
	if err != nil {
		return fmt.Errorf("read the version of the rules: the node answers with ETag %q", tag)
	}

	list, err := n.send(env.ctx, request{path: "/v1/rules/versions"})
	if err != nil {
		return err
	}

	var versions struct {
		Versions json.RawMessage `json:"versions"`
	}
	if err := list.decode(&versions); err != nil {
		return err
	}

	beside, err := fetchEntries(env, n, url.Values{})
	if err != nil {
		return err
	}

	b := backup{
		EntriesVersion: beside.EntriesVersion, Entries: beside.Entries,
		Format: backupFormat, TakenAt: time.Now().UTC().Truncate(time.Second), From: n.base, Version: version,
		SHA256: checksum(string(doc.body)), Rules: string(doc.body), Versions: versions.Versions,
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")

	if err := encoder.Encode(&b); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	if c.Output == "-" {
		_, err := io.Copy(env.stdout, &text)
		return err
	}
	if err := writeOutput(c.Output, text.Bytes()); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}

	_, err = fmt.Fprintf(env.stdout, "version %d is in %s\n", version, c.Output)
	return err
}

// readBackup decodes and checks a file written by backup.
func readBackup(text []byte) (*backup, error) {
	var b backup
	if err := wire.StrictJSON(text, &b); err != nil {
		if _, e := document.Parse(text); e == nil {
			return nil, errors.New("this is a rules file, not a backup: rlnode apply -f puts it in force")
		}
		return nil, fmt.Errorf("not a backup: %w", err)
	}

	switch {
	case b.Format != backupFormat:
		return nil, fmt.Errorf("not a backup: its format is %q, not %q", b.Format, backupFormat)
	case checksum(b.Rules) != b.SHA256:
		return nil, errors.New("the backup is damaged: its rules don't match its checksum")
	case b.Version < 1:
		return nil, errors.New("the backup is damaged: version is missing, or below 1")
	}

	return &b, nil
}
