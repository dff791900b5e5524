package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
	"github.com/rlnode/rlnode/cluster"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// maxScopedTime is how long an entry of a token with the scope entries may hold.
const maxScopedTime = 7 * 24 * time.Hour

// EntryWritten is the answer to a change of entries beside the rules. Entry is
// the entry as it is, or as it was before it was removed. It is null if only an
// automatic block was lifted, or a backup was restored.
type EntryWritten struct {
	Entry          json.RawMessage `json:"entry"`
	EntriesVersion int64           `json:"entries_version"`
	DryRun         bool            `json:"dry_run,omitempty"` // nothing was written
	Before         *EntryItem      `json:"before,omitempty"`  // of a dry run: what is there now
	Notes          []string        `json:"notes,omitempty"`   // where the writer may have made a mistake
}

// changeListed adds an entry to a list, or removes it if the method is DELETE.
func (s *Server) changeListed(w http.ResponseWriter, r *http.Request, list document.Change) error {
	body, err := readAll(r, codec.MaxBody)
	if err != nil {
		return err
	}

	f, err := s.readEntry(w, r, func(set *rules.Set) (document.EntryForm, error) {
		return set.Document.ReadListed(entries.ParseKind(list.Name), body)
	})
	if err != nil {
		return err
	}

	return s.changeEntry(w, r, f)
}

// readEntry returns the entry that read finds in a request under the rules in
// force. If read fails, readEntry tries again once this node has caught up: the
// tier or the rule may just have been written at another node.
func (s *Server) readEntry(
	w http.ResponseWriter, r *http.Request, read func(*rules.Set) (document.EntryForm, error),
) (f document.EntryForm, err error) {
	before := s.doors.Decider.Rules()
	if before != nil {
		f, err = read(before)
		if err == nil {
			return f, nil
		}
	}

	s.catchUp(w, r)
	set := s.doors.Decider.Rules()
	switch set {
	case nil:
		return f, api.Errorf(api.NotReady, "there are no rules in force yet")
	case before:
		return f, err
	default:
		return read(set)
	}
}

// getSubject answers with what the document and the entries say about a subject.
func (s *Server) getSubject(w http.ResponseWriter, r *http.Request) error {
	return s.answerPiece(w, r, func(set *rules.Set) (asJSON, asYAML []byte, err error) {
		attribute, value := r.PathValue("attribute"), r.PathValue("value")
		return set.Document.MergedSubject(attribute, value, set.Entries(), time.Now().UnixMilli())
	})
}

// changeSubject writes what an entry says about a subject, or removes it if the method is DELETE.
func (s *Server) changeSubject(w http.ResponseWriter, r *http.Request) error {
	var body []byte
	if r.Method == http.MethodPut {
		var err error
		body, err = readAll(r, codec.MaxBody)
		if err != nil {
			return err
		}
	}

	f, err := s.readEntry(w, r, func(set *rules.Set) (document.EntryForm, error) {
		attribute, value := r.PathValue("attribute"), r.PathValue("value")
		if r.Method == http.MethodDelete {
			return set.Document.SubjectForm(attribute, value), nil
		}
		return set.Document.ReadSubject(attribute, value, body)
	})
	if err != nil {
		return err
	}

	return s.changeEntry(w, r, f)
}

// changeEntry writes an entry, or removes it if the method is DELETE.
func (s *Server) changeEntry(w http.ResponseWriter, r *http.Request, f document.EntryForm) error {
	change, err := entryChange(r, f)
	if err != nil {
		return err
	}

	dry, err := s.isDryRun(w, r)
	if err != nil {
		return err
	}

	answer, err := s.makeChange(w, r, &change, dry)
	if errors.Is(err, entries.ErrNotFound) {
		if e := s.inDocument(f.Entry); e != nil {
			return e
		}
	}

	if err != nil {
		return writeError(err)
	}

	if !change.Remove {
		answer.Notes = s.notesOn(f.Entry)
	}
	return s.reply(w, answer)
}

// notesOn warns if an entry changes nothing, most probably because a name is
// misspelled.
func (s *Server) notesOn(e *entries.Entry) []string {
	if e.Kind != entries.Subject || e.Tier == "" || s.doors.Decider.Rules().UsesTiersOf(e.Attribute) {
		return nil
	}
	return []string{fmt.Sprintf("the tier changes nothing: no rule with tiers has %q in its key", e.Attribute)}
}

// makeChange makes a change of an entry, unless the run is dry, and returns the
// answer. If there is no such entry, it tries again once this node has caught
// up, since it may not have known all spellings.
func (s *Server) makeChange(
	w http.ResponseWriter, r *http.Request, c *cluster.EntryChange, dry bool,
) (*EntryWritten, error) {
	if dry {
		return s.rehearse(c)
	}

	version, entry, err := s.writeEntry(r, c)
	if errors.Is(err, entries.ErrNotFound) {
		s.catchUp(w, r)
		version, entry, err = s.writeEntry(r, c)
	}
	if err != nil {
		return nil, err
	}

	s.logEntry(r, c.Remove, version, entry)
	return &EntryWritten{Entry: document.EntryJSON(entry, ""), EntriesVersion: version}, nil
}

// writeEntry makes a change of an entry in all spellings that it has.
func (s *Server) writeEntry(
	r *http.Request, c *cluster.EntryChange,
) (version int64, last *entries.Entry, err error) {
	for changes := range slices.Chunk(s.inAllSpellings(c), cluster.MaxEntryChanges) {
		version, last, err = s.config.Entries.WriteEntries(r.Context(), changes)
		if err != nil {
			return 0, nil, err
		}
	}
	return version, last, nil
}

// inAllSpellings returns the changes that make c. Entries in other spellings
// are about the same subject or value, so c removes them as well: otherwise
// they would stay in force. The leader needs no rules to make these changes.
func (s *Server) inAllSpellings(c *cluster.EntryChange) (changes []cluster.EntryChange) {
	var same []*entries.Entry
	if set := s.doors.Decider.Rules(); set != nil {
		same = set.SameAs(c.Entry)
	}

	for _, e := range same {
		if c.Remove || e.ID() != c.Entry.ID() {
			remove := *c
			remove.Entry = e
			remove.Remove = true
			remove.For = 0
			changes = append(changes, remove)
		}
	}

	if c.Remove && len(changes) > 0 {
		return changes
	}
	// A removal that matches nothing here is sent as it is: the leader may know
	// the entry.
	return append(changes, *c)
}

// isDryRun reports whether a request only asks what a change would do. This
// node answers that by itself, so it catches up first.
func (s *Server) isDryRun(w http.ResponseWriter, r *http.Request) (bool, error) {
	dry, err := choiceParam(r.URL.Query(), "dry_run", "false", "true")
	if dry == "true" {
		s.catchUp(w, r)
	}
	return dry == "true", err
}

// rehearse returns the answer to a dry run of a change: the entry as it would
// be written or removed, and what is there now. The dry run fails if the change
// would fail, as far as this node knows.
func (s *Server) rehearse(c *cluster.EntryChange) (*EntryWritten, error) {
	state := s.doors.Decider.Rules().Entries()
	next := state
	now := time.Now().UnixMilli()
	var before, after *entries.Entry

	for _, change := range s.inAllSpellings(c) {
		stamped := change.Stamped(now)
		after = stamped.Entry
		if e := state.Get(after.ID()); e != nil {
			before = e
		}

		var err error
		next, err = next.With(stamped)
		if err != nil {
			return nil, err
		}
	}

	if c.Remove {
		after = before
	}
	answer := &EntryWritten{Entry: document.EntryJSON(after, ""), EntriesVersion: state.Version(), DryRun: true}
	if before != nil && !before.IsOver(now) {
		answer.Before = itemOf(before)
	}
	return answer, nil
}

// entryChange returns the change that a request asks for, if its token permits it.
func entryChange(r *http.Request, f document.EntryForm) (c cluster.EntryChange, err error) {
	if r.Header.Get("If-Match") != "" {
		return c, api.Errorf(api.BadValue, "If-Match is not supported here: it is for versions of the rules")
	}

	c.Entry = f.Entry
	c.Remove = r.Method == http.MethodDelete
	c.By = callerWithAddress(r)
	c.For = f.For.Milliseconds()

	t := tokenFrom(r)
	now := time.Now()

	if !c.Remove {
		if err := f.CheckValues(); err != nil {
			return c, err
		}
	}

	if !c.Remove && f.Until != 0 && f.Until <= now.UnixMilli() {
		return c, api.Errorf(api.BadValue, "until is in the past")
	}

	if t == nil {
		return c, nil
	}

	c.Entry.Token = t.Name
	if t.Scopes.Allows(api.ScopeAdmin) {
		return c, nil
	}

	c.Scoped, c.Entry.Scoped = true, true
	if c.Remove {
		return c, nil // the leader checks under which scope the entry was written
	}

	end := now.Add(f.For)
	if f.Until != 0 {
		end = time.UnixMilli(f.Until)
	}

	switch {
	case !document.NamesOneValue(f.Entry):
		return c, api.Errorf(api.Forbidden,
			"with the scope entries, %s may only deny or block one value: an address, a /64 of IPv6, or a text without *",
			t.Name)
	case f.For == 0 && f.Until == 0:
		return c, api.Errorf(api.Forbidden, "with the scope entries, %s must give an end: for or until", t.Name)
	case end.After(now.Add(maxScopedTime)):
		return c, api.Errorf(api.Forbidden,
			"with the scope entries, %s may only write entries for at most 7 days", t.Name)
	}

	return c, nil
}

// inDocument returns the error for an entry to remove that only the document has, or nil.
func (s *Server) inDocument(e *entries.Entry) error {
	set := s.doors.Decider.Rules()
	if set == nil {
		return nil
	}
	line, found := set.Document.FindEntry(e)
	if !found {
		return nil
	}
	out := api.Errorf(api.InDocument, "only the rules document has it, in line %d: remove it there", line)
	out.Line = line
	return out
}

// logEntry logs a change of an entry.
func (s *Server) logEntry(r *http.Request, removed bool, version int64, e *entries.Entry) {
	change := "written"
	if removed {
		change = "removed"
	}
	s.doors.Logger.Info("an entry was changed", "change", change, "kind", e.Kind,
		"entry", string(document.EntryJSON(e, "")), "entries_version", version, "by", callerWithAddress(r))
}

// blockForm reads the block that a request names: in its body, or in the query.
func (s *Server) blockForm(r *http.Request) (f document.EntryForm, err error) {
	q := r.URL.Query()
	if r.Method == http.MethodDelete && q.Has("rule") {
		text, _ := json.Marshal(q.Get("rule")) // strings and numbers can't fail
		key, _ := json.Marshal(q.Get("key"))
		if values, e := codec.ParseKey(q.Get("key")); e == nil && len(values) > 1 {
			key, _ = json.Marshal(values)
		}
		return document.ReadBlock(fmt.Appendf(nil, `{"rule":%s,"key":%s}`, text, key))
	}

	body, err := readAll(r, codec.MaxBody)
	if err != nil {
		return f, err
	}

	return document.ReadBlock(body)
}

// changeBlock blocks a subject by hand. If the method is DELETE, it lifts the
// block by hand and the automatic one.
func (s *Server) changeBlock(w http.ResponseWriter, r *http.Request) error {
	f, err := s.blockForm(r)
	if err != nil {
		return err
	}
	if f.Rule == "" {
		return api.Errorf(api.MissingKey, "rule is missing")
	}

	known, err := s.normalizeBlock(f.Entry)
	if err != nil { // another node may have newer rules, which know it; see readEntry
		s.catchUp(w, r)
		known, err = s.normalizeBlock(f.Entry)
	}

	switch {
	case r.Method == http.MethodDelete && (!known || err != nil && s.isStored(f.Entry)):
		return s.changeEntry(w, r, f) // if there is such an entry, it sleeps
	case err != nil:
		return err
	case r.Method == http.MethodDelete:
		return s.unblock(w, r, f)
	}

	return s.changeEntry(w, r, f)
}

// isStored reports whether there is an entry that is written exactly as e.
func (s *Server) isStored(e *entries.Entry) bool {
	set := s.doors.Decider.Rules()
	return set != nil && set.Entries().Get(e.ID()) != nil
}

// normalizeBlock brings the key of a block into the form in which its rule
// counts. known is false if there is no such rule.
func (s *Server) normalizeBlock(e *entries.Entry) (known bool, err error) {
	set := s.doors.Decider.Rules()
	if set == nil {
		return false, api.Errorf(api.NotReady, "there are no rules in force yet")
	}

	rule := set.Rule(e.Rule)
	switch {
	case rule == nil || rule.Envoy:
		return false, api.Errorf(api.UnknownRule, "unknown rule %q", api.Excerpt(e.Rule))
	case len(e.Key) == 0 && len(rule.Key) > 0:
		return true, api.Errorf(api.MissingKey, "key is missing: rule %q has the key attributes %q",
			api.Excerpt(e.Rule), rule.Key)
	case len(e.Key) != len(rule.Key):
		return true, api.Errorf(api.BadValue,
			"key has %d values, but rule %q has the key attributes %q", len(e.Key),
			api.Excerpt(e.Rule), rule.Key)
	}

	if missing := set.MissingAttribute(rule, e.Key); missing != "" {
		return true, api.Errorf(api.MissingKey,
			"key: rule %q needs the attribute %s, which is empty", api.Excerpt(e.Rule), missing)
	}

	e.Key = rule.NormalKey(e.Key)
	return true, nil
}

// unblock lifts both blocks of a subject. A token with the scope entries lifts
// only the block by hand.
func (s *Server) unblock(w http.ResponseWriter, r *http.Request, f document.EntryForm) error {
	change, err := entryChange(r, f)
	if err != nil {
		return err
	}

	dry, err := s.isDryRun(w, r)
	if err != nil {
		return err
	}

	answer, err := s.makeChange(w, r, &change, dry)
	notFound := errors.Is(err, entries.ErrNotFound)
	switch {
	case notFound && !change.Scoped:
		answer = &EntryWritten{Entry: json.RawMessage("null"),
			EntriesVersion: s.doors.Decider.Rules().Entries().Version(), DryRun: dry}
	case err != nil:
		return writeError(err)
	}

	if change.Scoped {
		return s.reply(w, answer)
	}

	q := &limiter.Query{Rule: f.Rule, Key: f.Key, ByKey: true}
	if notFound {
		before, err := s.config.Subjects.Usage(q)
		if err != nil {
			return fmt.Errorf("read usage: %w", err)
		}
		if before.Blocked == 0 {
			return api.Errorf(api.NotFound, "rule %q does not block this", api.Excerpt(f.Rule))
		}
	}

	if dry {
		return s.reply(w, answer)
	}
	if _, err := s.config.Subjects.Unblock(q); err != nil {
		return fmt.Errorf("lift block: %w", err)
	}
	if notFound { // a block by hand has been logged as an entry
		s.doors.Logger.Info("a block that a refusal began was lifted", "rule", f.Rule,
			"key", strings.Join(f.Key, " · "), "by", callerWithAddress(r))
	}

	return s.reply(w, answer)
}

// EntryItem is an entry in a list of entries.
type EntryItem struct {
	Kind   entries.Kind    `json:"kind"`
	Entry  json.RawMessage `json:"entry"`
	Asleep bool            `json:"asleep,omitempty"` // it names a tier or a rule that the document lacks
	Token  string          `json:"token,omitempty"`  // the token that wrote it
	Scope  string          `json:"scope,omitempty"`  // entries, if the token had no wider scope
}

func itemOf(e *entries.Entry) *EntryItem {
	if e == nil {
		return nil
	}
	item := &EntryItem{Kind: e.Kind, Entry: document.EntryJSON(e, ""), Token: e.Token}
	if e.Scoped {
		item.Scope = "entries"
	}
	return item
}

// EntryPage is the answer to GET /v1/entries and to GET /v1/blocks.
type EntryPage struct {
	Entries        []*EntryItem `json:"entries"`
	EntriesVersion int64        `json:"entries_version"`
	Next           string       `json:"next,omitempty"` // what to pass as after for more
}

// getEntries lists entries that have not ended, page by page: all, those of a
// kind, or those that sleep.
func (s *Server) getEntries(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	kind := entries.ParseKind(q.Get("kind"))
	if q.Get("kind") != "" && kind == 0 {
		return api.Errorf(api.BadValue, "kind must be deny, allow, subject or block")
	}
	return s.replyEntries(w, r, kind)
}

// getBlocks lists blocks by hand.
func (s *Server) getBlocks(w http.ResponseWriter, r *http.Request) error {
	return s.replyEntries(w, r, entries.Block)
}

func (s *Server) replyEntries(w http.ResponseWriter, r *http.Request, kind entries.Kind) error {
	q := r.URL.Query()
	n, err := countParam(q, defaultPage, maxPage)
	if err != nil {
		return err
	}

	asleep, err := choiceParam(q, "asleep", "false", "true")
	if err != nil {
		return err
	}

	s.catchUp(w, r)
	set := s.doors.Decider.Rules()
	if set == nil {
		return api.Errorf(api.NotReady, "there are no rules in force yet")
	}

	now := time.Now().UnixMilli()
	after := q.Get("after")
	answer := EntryPage{Entries: []*EntryItem{}, EntriesVersion: set.Entries().Version()}
	for _, e := range set.Entries().Sorted() {
		sleeps := set.IsAsleep(e)
		if e.ID() <= after || kind != 0 && e.Kind != kind || e.IsOver(now) || asleep == "true" && !sleeps {
			continue
		}
		if len(answer.Entries) == n {
			answer.Next = after
			break
		}

		item := itemOf(e)
		item.Asleep = sleeps
		answer.Entries = append(answer.Entries, item)
		after = e.ID()
	}

	return s.reply(w, answer)
}

// EntryLog is the answer to GET /v1/entries/log: changes of entries, newest first.
type EntryLog struct {
	Changes []EntryRecord `json:"changes"`
	Next    int64         `json:"next,omitempty"` // what to pass as before for earlier ones
}

// EntryRecord is a change of an entry. Before is null if the entry is new, After if it was removed.
type EntryRecord struct {
	Version int64      `json:"version"` // of the entries
	When    time.Time  `json:"when"`
	By      string     `json:"by,omitempty"`
	Ended   bool       `json:"ended,omitempty"` // its end had come
	Before  *EntryItem `json:"before"`
	After   *EntryItem `json:"after"`
}

// getEntryLog lists the last changes of entries.
func (s *Server) getEntryLog(w http.ResponseWriter, r *http.Request) error {
	q := r.URL.Query()
	n, err := countParam(q, defaultPage, maxPage)
	if err != nil {
		return err
	}

	before, err := versionParam(r, "before")
	if err != nil {
		return err
	}

	s.catchUp(w, r)
	set := s.doors.Decider.Rules()
	if set == nil {
		return api.Errorf(api.NotReady, "there are no rules in force yet")
	}

	answer := EntryLog{Changes: []EntryRecord{}}
	if before == 1 {
		return s.reply(w, answer)
	}

	for _, record := range set.Entries().Log(max(0, before-1), n+1) {
		if len(answer.Changes) == n {
			answer.Next = record.Version + 1
			break
		}
		answer.Changes = append(answer.Changes, EntryRecord{
			Version: record.Version, When: time.UnixMilli(record.When).UTC(), By: record.By, Ended: record.Ended,
			Before: itemOf(record.Before), After: itemOf(record.After),
		})
	}

	return s.reply(w, answer)
}

// restoreRequest is the body of POST /v1/entries.
type restoreRequest struct {
	Entries []EntryItem `json:"entries"` // to write as they are, with their authors and times
	Remove  []EntryItem `json:"remove"`
}

// maxRestore bounds the body of POST /v1/entries, in bytes.
const maxRestore = 4 << 20

// restoreEntries writes entries of a backup, which keep their times and
// authors, and removes others. Entries that have ended are left out.
func (s *Server) restoreEntries(w http.ResponseWriter, r *http.Request) error {
	body, err := readAll(r, maxRestore)
	if err != nil {
		return err
	}

	var in restoreRequest
	if err := json.Unmarshal(body, &in); err != nil {
		return api.Errorf(api.BadJSON, "%v", err)
	}

	n := len(in.Entries) + len(in.Remove)
	if n > cluster.MaxEntryChanges {
		return api.Errorf(api.BadValue, "entries and remove have %d items, more than %d", n, cluster.MaxEntryChanges)
	}

	now := time.Now().UnixMilli()
	var changes []cluster.EntryChange
	for i, item := range append(in.Remove, in.Entries...) {
		e, err := document.ReadStored(item.Kind, item.Entry)
		if err != nil {
			return api.Errorf(api.BadValue, "item %d: %v", i, err)
		}

		e.Token = item.Token
		e.Scoped = item.Scope != ""
		c := cluster.EntryChange{Restored: true}
		c.Entry = e
		c.Remove = i < len(in.Remove)
		c.By = callerWithAddress(r)
		if c.Remove || !e.IsOver(now) {
			changes = append(changes, c)
		}
	}

	version := int64(0)
	if set := s.doors.Decider.Rules(); set != nil {
		version = set.Entries().Version()
	}

	if len(changes) > 0 {
		version, err = s.writeRestored(w, r, changes)
		if err != nil {
			return writeError(err)
		}
		s.doors.Logger.Info("entries were restored", "changes", len(changes),
			"entries_version", version, "by", callerWithAddress(r))
	}

	return s.reply(w, EntryWritten{Entry: json.RawMessage("null"), EntriesVersion: version})
}

// writeRestored makes the changes of a backup. An entry that is to be removed
// may be gone meanwhile, because its end has come: that must not stop the
// others.
func (s *Server) writeRestored(
	w http.ResponseWriter, r *http.Request, changes []cluster.EntryChange,
) (version int64, err error) {
	for {
		version, _, err = s.config.Entries.WriteEntries(r.Context(), changes)
		if !errors.Is(err, entries.ErrNotFound) || s.doors.Decider.Rules() == nil {
			return version, err
		}

		s.catchUp(w, r)
		state := s.doors.Decider.Rules().Entries()
		rest := slices.DeleteFunc(slices.Clone(changes),
			func(c cluster.EntryChange) bool { return c.Remove && state.Get(c.Entry.ID()) == nil })
		switch len(rest) {
		case 0:
			return state.Version(), nil
		case len(changes):
			return version, err
		}
		changes = rest
	}
}
