package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/rules"
)

// restoreCmd restores a backup.
type restoreCmd struct {
	File     string `arg:"" help:"A file written by backup; - is standard input."`
	Document bool   `help:"Restore the rules document; with neither flag, everything is restored."`
	Entries  string `enum:",merge,replace" default:"" placeholder:"merge|replace" help:"Restore the entries beside it: merge keeps those that the backup lacks, replace removes them."`
	answerFlags
}

// Run checks the backup and puts what it has in force.
func (c *restoreCmd) Run(env *environment) error {
	n, err := c.client()
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

	all := !c.Document && c.Entries == ""
	if c.Document || all {
		if err := c.restoreDocument(env, n, b); err != nil {
			return err
		}
	}

	if c.Entries != "" || all && len(b.Entries) > 0 {
		return restoreEntries(env, n, b.Entries, c.Entries == "replace")
	}

	return nil
}

// restoreDocument puts the rules of a backup in force.
func (c *restoreCmd) restoreDocument(env *environment, n *remote, b *backup) error {
	fmt.Fprintf(env.stderr, "restoring version %d of %s, taken %s\n", b.Version, printable(b.From),
		b.TakenAt.Format(time.RFC3339))
	r := request{
		method: http.MethodPut, path: "/v1/rules", contentType: "application/yaml",
		body: []byte(b.Rules), query: url.Values{"via": {rules.ViaRestore}},
	}
	reply, err := n.send(env.ctx, r)
	if err != nil {
		return explainRules(env, "the backup's rules", err)
	}
	return printReply(env, c.JSON, reply, printWritten(env, "the backup's rules"))
}

// Bounds of one write of entries, so that its body stays well below the node's bound.
const (
	restoreChunk = 500
	restoreBytes = 1 << 20
)

// restoreEntries writes entries, and with replace removes those that are not among them.
func restoreEntries(env *environment, n *remote, list []*admin.EntryItem, replace bool) error {
	var surplus []*admin.EntryItem
	if replace {
		have, err := fetchEntries(env, n, url.Values{})
		if err != nil {
			return err
		}

		kept := map[string]bool{}
		for _, item := range list {
			kept[entryKey(item)] = true
		}

		for _, item := range have.Entries {
			if !kept[entryKey(item)] {
				surplus = append(surplus, item)
			}
		}
	}

	// The entries that go make room for the others.
	if err := writeItems(env, n, "remove", surplus); err != nil {
		return err
	}
	if err := writeItems(env, n, "entries", list); err != nil {
		return err
	}

	_, err := fmt.Fprintf(env.stderr, "%d entries restored, %d removed\n", len(list), len(surplus))
	return err
}

// writeItems sends entries to be written or removed, some at a time.
func writeItems(env *environment, n *remote, field string, list []*admin.EntryItem) error {
	for len(list) > 0 {
		size := 0
		count := 0
		// A chunk has at least one entry, however large: the node says what is
		// wrong with it.
		for count < min(len(list), restoreChunk) && (count == 0 || size+len(list[count].Entry) <= restoreBytes) {
			size += len(list[count].Entry)
			count++
		}

		body, err := json.Marshal(map[string]any{field: list[:count]})
		if err != nil {
			return fmt.Errorf("restore entries: %w", err)
		}

		if _, err := n.send(env.ctx, post("/v1/entries", body)); err != nil {
			return err
		}

		list = list[count:]
	}

	return nil
}

// entryKey identifies an entry: its kind and what it is about, without its end,
// note, author and time. For a subject, that is its attribute and value.
func entryKey(item *admin.EntryItem) string {
	fields := map[string]json.RawMessage{}
	_ = json.Unmarshal(item.Entry, &fields) // what is no object has no fields, and the node refuses it
	maps.DeleteFunc(fields, func(name string, _ json.RawMessage) bool {
		switch name {
		case "until", "note", "by", "when":
			return true
		case "tier", "limits":
			return item.Kind.String() == "subject"
		}
		return false
	})
	text, _ := json.Marshal(fields) // sorted by name; strings and numbers can't fail

	return item.Kind.String() + string(text)
}
