package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/persist"
	"github.com/rlnode/rlnode/rules"
)

// backup is the file that the command backup writes: the rules in force as one text, and their origin.
type backup struct {
	Format   string          `json:"format"` // backupFormat
	TakenAt  time.Time       `json:"taken_at"`
	From     string          `json:"from"`     // address of the node
	Version  int64           `json:"version"`  // of the rules
	SHA256   string          `json:"sha256"`   // of Rules, in hex
	Rules    string          `json:"rules"`    // the document, YAML
	Versions json.RawMessage `json:"versions"` // the list of versions at the time of the backup, newest first
}

const backupFormat = "rlnode-backup-1"

// maxBackup bounds a backup file, in bytes. A document of 8 MiB fits even with every byte escaped.
const maxBackup = 64 << 20

func checksum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// backupCmd saves the rules.
type backupCmd struct {
	Output string `short:"o" default:"-" placeholder:"FILE" help:"File to write; - is standard output (default)."`
	adminPlane
}

// Help implements kong.HelpProvider.
func (backupCmd) Help() string {
	return `A backup is a JSON file with the rules in force, their version, the time, and the list of versions. It has no
counters.

Examples:

  rlnode backup -o rlnode-backup.json
  rlnode restore rlnode-backup.json`
}

// Run takes the backup.
func (c *backupCmd) Run(env *environment) error {
	n, err := c.node()
	if err != nil {
		return err
	}
	doc, err := n.send(env.ctx, request{path: "/v1/rules", accept: "application/yaml"})
	if err != nil {
		return err
	}
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
	b := backup{
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
	if err := persist.ReplaceFile(c.Output, text.Bytes()); err != nil {
		return fmt.Errorf("write the backup: %w", err)
	}
	_, err = fmt.Fprintf(env.stdout, "version %d is in %s\n", version, c.Output)
	return err
}

// restoreCmd restores a backup.
type restoreCmd struct {
	File string `arg:"" help:"A file written by backup; - is standard input."`
	answerFlags
}

// Help implements kong.HelpProvider.
func (restoreCmd) Help() string {
	return `The rules of the backup become a new version; the rules it replaces stay in the list of versions.

Example:

  rlnode restore rlnode-backup.json`
}

// Run checks the backup and puts its rules in force.
func (c *restoreCmd) Run(env *environment) error {
	n, err := c.node()
	if err != nil {
		return err
	}
	text, err := readFile(env, c.File, maxBackup)
	if err != nil {
		return err
	}
	b, err := readBackup(text)
	if err != nil {
		return fmt.Errorf("read %s: %w", shownName(c.File), err)
	}
	fmt.Fprintf(env.stderr, "restoring version %d of %s, taken %s\n", b.Version, printable(b.From), b.TakenAt.Format(time.RFC3339))
	r := request{
		method: http.MethodPut, path: "/v1/rules", contentType: "application/yaml", body: []byte(b.Rules), query: url.Values{"via": {rules.ViaRestore}},
	}
	reply, err := n.send(env.ctx, r)
	if err != nil {
		return explainRules(env, "the backup's rules", err)
	}
	return printReply(env, c.JSON, reply, printWritten(env, "the backup's rules"))
}

// readBackup decodes and checks a file written by backup.
func readBackup(text []byte) (*backup, error) {
	var b backup
	if err := json.Unmarshal(text, &b); err != nil {
		if _, e := rules.Parse(text); e == nil {
			return nil, errors.New("this is a rules file, not a backup: rlnode apply -f puts it in force")
		}
		return nil, fmt.Errorf("not a backup: %w", err)
	}
	switch {
	case b.Format != backupFormat:
		return nil, fmt.Errorf("not a backup: its format is %q, not %q", b.Format, backupFormat)
	case checksum(b.Rules) != b.SHA256:
		return nil, errors.New("the backup is damaged: its rules don't match its checksum")
	}
	return &b, nil
}
