package main

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/internal/yaml"
)

// listName is the name of a list, as a type.
type listName interface{ name() string }

type (
	denyList  struct{}
	allowList struct{}
)

func (denyList) name() string  { return "deny" }
func (allowList) name() string { return "allow" }

// listCmd changes the deny list or the allow list.
type listCmd[L listName] struct {
	Add    listAddCmd[L]    `cmd:"" help:"Add an entry."`
	Remove listRemoveCmd[L] `cmd:"" help:"Remove an entry."`
	List   listShowCmd[L]   `cmd:"" help:"Print the list, in the document and beside it."`
}

type (
	denyCmd  = listCmd[denyList]
	allowCmd = listCmd[allowList]
)

// holdFlags say how long an entry holds, and why it is there.
type holdFlags struct {
	For   *string `placeholder:"DURATION" help:"How long it holds, such as 30m, 24h or 7d (default: until it is removed)."`
	Until *string `placeholder:"TIME" help:"Its end instead, such as 2026-11-28T12:00:00Z."`
	Note  *string `placeholder:"TEXT" help:"Why it is there: at most 256 characters."`
}

// add adds the flags to the fields of a body. One that is given but empty is
// sent, and the node refuses it: an entry that was to end must not hold for good.
func (h *holdFlags) add(fields map[string]any) {
	for name, value := range map[string]*string{"for": h.For, "until": h.Until, "note": h.Note} {
		if value != nil {
			fields[name] = *value
		}
	}
}

type (
	listAddCmd[L listName] struct {
		Entry []string `arg:"" placeholder:"NAME=VALUE" help:"Attributes that a check must have, all of them. A value is an address, a network, or text in which * stands for any text."`
		holdFlags
		answerFlags
	}
	listRemoveCmd[L listName] struct {
		Entry []string `arg:"" placeholder:"NAME=VALUE" help:"The entry's attributes."`
		answerFlags
	}
	listShowCmd[L listName] struct{ answerFlags }
)

func (c *listAddCmd[L]) Run(env *environment) error {
	fields, err := entryFields(c.Entry)
	if err != nil {
		return err
	}
	c.holdFlags.add(fields)
	var l L
	return c.writeEntry(env, http.MethodPost, "/v1/lists/"+l.name()+"/entries", fields)
}

func (c *listRemoveCmd[L]) Run(env *environment) error {
	fields, err := entryFields(c.Entry)
	if err != nil {
		return err
	}
	var l L
	return c.writeEntry(env, http.MethodDelete, "/v1/lists/"+l.name()+"/entries", fields)
}

func (c *listShowCmd[L]) Run(env *environment) error {
	var l L
	return sendAndPrint(env, c.client, c.JSON,
		request{path: "/v1/lists/" + l.name(), accept: "application/json"},
		func(w io.Writer, list *[]json.RawMessage) error {
			rows := make([]*entryRow, len(*list))
			for i, item := range *list {
				rows[i] = readRow(l.name(), item)
			}
			return printEntries(w, rows, "the list is empty")
		})
}

// entryFields returns the attributes of an entry as fields of a body.
func entryFields(pairs []string) (map[string]any, error) {
	entry, err := parsePairs("entry", pairs)
	if err != nil {
		return nil, usageError("%w", err)
	}
	fields := map[string]any{}
	for name, value := range entry {
		switch name {
		case "for", "until", "note":
			return nil, usageError("entry: %s is no attribute: write --%[1]s", name)
		}
		fields[name] = value
	}
	return fields, nil
}

// writeEntry changes an entry and prints the answer.
func (a *answerFlags) writeEntry(env *environment, method, path string, fields map[string]any) error {
	r := request{method: method, path: path}
	if fields != nil {
		r.body, _ = json.Marshal(fields) // strings and numbers can't fail, and the JSON in it was checked
		r.contentType = "application/json"
	}

	return sendAndPrint(env, a.client, a.JSON, r, func(w io.Writer, answer *admin.EntryWritten) error {
		for _, note := range answer.Notes {
			fmt.Fprintln(env.stderr, oneLine(note))
		}

		what := "written"
		if method == http.MethodDelete {
			what = "removed"
		}

		if string(answer.Entry) == "null" {
			_, err := fmt.Fprintln(w, "lifted")
			return err
		}

		row := readRow("", answer.Entry)
		end := ""
		if row.until != "" && what == "written" {
			end = ", until " + row.until
		}

		_, err := fmt.Fprintf(w, "%s: %s%s (version %d of the entries)\n", what,
			printable(row.text), end, answer.EntriesVersion)
		return err
	})
}

// subjectSetCmd writes an entry about a subject.
type subjectSetCmd struct {
	Subject string `arg:"" placeholder:"NAME=VALUE" help:"A key attribute and its value."`
	Tier    string `placeholder:"NAME" help:"The subject's tier, in place of the document's."`
	Limits  string `placeholder:"JSON" help:"Limits in place of a rule's, as in the document: {chat: [{limit: 600, per: 1m}]}."`
	holdFlags
	answerFlags
}

func (c *subjectSetCmd) Run(env *environment) error {
	path, err := subjectPath(c.Subject)
	if err != nil {
		return err
	}
	if c.Tier == "" && c.Limits == "" {
		return usageError("give --tier, --limits or both")
	}

	fields := map[string]any{}
	if c.Tier != "" {
		fields["tier"] = c.Tier
	}

	if c.Limits != "" {
		limits, err := yaml.Parse(c.Limits)
		if err != nil {
			return usageError("--limits: %w", err)
		}
		fields["limits"] = json.RawMessage(limits.AppendJSON(nil))
	}

	c.holdFlags.add(fields)
	return c.writeEntry(env, http.MethodPut, path, fields)
}

// subjectUnsetCmd removes an entry about a subject.
type subjectUnsetCmd struct {
	Subject string `arg:"" placeholder:"NAME=VALUE" help:"A key attribute and its value."`
	answerFlags
}

func (c *subjectUnsetCmd) Run(env *environment) error {
	path, err := subjectPath(c.Subject)
	if err != nil {
		return err
	}
	return c.writeEntry(env, http.MethodDelete, path, nil)
}

// subjectPath returns the path of a subject that is given as name=value.
func subjectPath(pair string) (string, error) {
	name, value, ok := strings.Cut(pair, "=")
	if !ok || name == "" {
		return "", usageError("subject %q: want name=value", pair)
	}
	return "/v1/subjects/" + url.PathEscape(name) + "/" + url.PathEscape(value), nil
}

// keyFlags name a rule's subject by its key.
type keyFlags struct {
	Rule string   `required:"" placeholder:"RULE" help:"The rule."`
	Key  []string `sep:"none" placeholder:"VALUE" help:"The subject; once for each key attribute of the rule, in its order."`
}

// fields returns the subject for a body in JSON; subjectQuery is for a query.
func (k *keyFlags) fields() map[string]any {
	fields := map[string]any{"rule": k.Rule}
	switch len(k.Key) {
	case 0:
	case 1:
		fields["key"] = k.Key[0]
	default:
		fields["key"] = k.Key
	}
	return fields
}

// blockCmd blocks a subject by hand.
type blockCmd struct {
	keyFlags
	holdFlags
	answerFlags
}

func (c *blockCmd) Run(env *environment) error {
	fields := c.fields()
	c.holdFlags.add(fields)
	return c.writeEntry(env, http.MethodPost, "/v1/blocks", fields)
}

// unblockCmd lifts a subject's blocks.
type unblockCmd struct {
	keyFlags
	answerFlags
}

func (c *unblockCmd) Run(env *environment) error {
	return c.writeEntry(env, http.MethodDelete, "/v1/blocks", c.fields())
}

// entriesCmd lists entries, and their changes.
type entriesCmd struct {
	List entriesListCmd `cmd:"" default:"withargs" help:"List the entries (default)."`
	Log  entriesLogCmd  `cmd:"" help:"List the last changes of entries."`
}

// entriesListCmd lists entries.
type entriesListCmd struct {
	Kind   string `enum:",deny,allow,subject,block" default:"" placeholder:"KIND" help:"Only deny, allow, subject or block."`
	Asleep bool   `help:"Only those that name a tier or a rule that the document lacks."`
	answerFlags
}

// Run prints the entries, page by page.
func (c *entriesListCmd) Run(env *environment) error {
	n, err := c.client()
	if err != nil {
		return err
	}

	query := url.Values{}
	if c.Kind != "" {
		query.Set("kind", c.Kind)
	}
	if c.Asleep {
		query.Set("asleep", "true")
	}

	page, err := fetchEntries(env, n, query)
	if err != nil {
		return err
	}
	if c.JSON {
		return json.NewEncoder(env.stdout).Encode(page)
	}

	rows := make([]*entryRow, len(page.Entries))
	for i, item := range page.Entries {
		rows[i] = readItem(item)
	}

	emptyText := "there are no entries beside the document"
	switch {
	case c.Asleep:
		emptyText = "no entry sleeps"
	case c.Kind != "":
		emptyText = "there are no entries of this kind beside the document"
	}

	return printEntries(env.stdout, rows, emptyText)
}

// fetchEntries returns all pages of entries as one.
func fetchEntries(env *environment, n *remote, query url.Values) (*admin.EntryPage, error) {
	all := &admin.EntryPage{Entries: []*admin.EntryItem{}}
	query.Set("n", "1000")

	for {
		answer, err := n.send(env.ctx, request{path: "/v1/entries", query: query})
		if err != nil {
			return nil, err
		}

		var page admin.EntryPage
		if err := answer.decode(&page); err != nil {
			return nil, err
		}

		all.Entries = append(all.Entries, page.Entries...)
		all.EntriesVersion = page.EntriesVersion

		if page.Next == "" {
			answer.warnStale(env)
			return all, nil
		}

		query.Set("after", page.Next)
	}
}

// entriesLogCmd lists changes of entries.
type entriesLogCmd struct {
	N int `short:"n" default:"100" placeholder:"N" help:"How many, at most 1,000 (default ${default})."`
	answerFlags
}

func (c *entriesLogCmd) Run(env *environment) error {
	r := request{path: "/v1/entries/log", query: url.Values{"n": {strconv.Itoa(c.N)}}}
	return sendAndPrint(env, c.client, c.JSON, r, func(w io.Writer, log *admin.EntryLog) error {
		if len(log.Changes) == 0 {
			_, err := fmt.Fprintln(w, "no entry has changed")
			return err
		}
		return printTable(w, "VERSION\tWHEN\tBY\tCHANGE", log.Changes, changeLine)
	})
}

// changeLine returns a row of the log.
func changeLine(c admin.EntryRecord) string {
	what := ""
	item := cmp.Or(c.After, c.Before)
	switch {
	case c.Ended:
		what = "ended"
	case c.After == nil:
		what = "removed"
	case c.Before == nil:
		what = "added"
	default:
		what = "replaced"
	}

	line := what + " " + item.Kind.String() + " " + readItem(item).whole()
	if what == "replaced" {
		line += ", before: " + readItem(c.Before).whole()
	}

	return fmt.Sprintf("%d\t%s\t%s\t%s", c.Version, c.When.UTC().Format(time.RFC3339),
		printable(cmp.Or(c.By, "-")), printable(line))
}

// entryRow is an entry as commands print it.
type entryRow struct {
	kind, text, until, by, note, origin string
	asleep                              bool
}

// readItem returns the row of an entry in a page.
func readItem(item *admin.EntryItem) *entryRow {
	row := readRow(item.Kind.String(), item.Entry)
	row.asleep = item.Asleep
	return row
}

// readRow returns the row of an entry as the node renders it.
func readRow(kind string, entry json.RawMessage) *entryRow {
	row := &entryRow{kind: kind}
	n, err := yaml.Parse(string(entry))
	if err != nil || n.Kind != yaml.Map {
		row.text = string(entry)
		return row
	}

	// A subject's line has one attribute under two keys. In a list's line, any
	// name may be an attribute's.
	var parts []string
	attribute, value := n.Get("attribute"), n.Get("value")
	isSubject := attribute != nil && value != nil
	if isSubject {
		parts = append(parts, attribute.Text+"="+value.Text)
	}

	for key, v := range n.Pairs {
		if isSubject && (v == attribute || v == value) {
			continue
		}

		switch key.Text {
		case "until":
			row.until = v.Text
		case "by":
			row.by = v.Text
		case "note":
			row.note = v.Text
		case "origin":
			row.origin = v.Text
		case "when":
		default:
			text := v.Text
			if v.Kind == yaml.Map || v.Kind == yaml.List {
				text = string(v.AppendJSON(nil))
			}
			parts = append(parts, key.Text+"="+text)
		}
	}

	row.text = strings.Join(parts, " ")
	return row
}

// whole returns the entry with its end and note.
func (r *entryRow) whole() string {
	text := r.text
	if r.until != "" {
		text += " until " + r.until
	}
	if r.note != "" {
		text += " (" + r.note + ")"
	}
	return text
}

// printEntries prints rows, or a sentence if there are none.
func printEntries(w io.Writer, rows []*entryRow, emptyText string) error {
	if len(rows) == 0 {
		_, err := fmt.Fprintln(w, emptyText)
		return err
	}

	return printTable(w, "KIND\tENTRY\tUNTIL\tBY\tNOTE", rows, func(r *entryRow) string {
		kind := r.kind
		if r.asleep {
			kind += " (asleep)"
		}
		by := r.by
		if r.origin == "document" {
			by = "the document"
		}
		return strings.Join([]string{kind, printable(r.text), cmp.Or(r.until, "-"),
			printable(cmp.Or(by, "-")), printable(cmp.Or(r.note, "-"))}, "\t")
	})
}
