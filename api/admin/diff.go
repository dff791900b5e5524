package admin

import (
	"bytes"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/limiter"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// Difference is the answer to POST /v1/rules/diff: what a document changes, and what that means.
type Difference struct {
	From    int64        `json:"from"`         // the version that is compared with; 0 if there are no rules yet
	To      int64        `json:"to,omitempty"` // the other version; 0 for a document that was sent
	Changed bool         `json:"changed"`
	Summary []string     `json:"summary"` // sentences for people
	Changes []RuleChange `json:"changes"`
	// LeftOut is how many changes of subjects and list entries there are beyond maxSmallChanges.
	LeftOut int `json:"left_out,omitempty"`
	// Outside lists the versions since the last document that was applied as a
	// whole, oldest first, if the other document lacks their changes: writes of
	// pieces, and those of the dashboard. OutsidePieces lists these changes.
	Outside       []rules.Version        `json:"outside,omitempty"`
	OutsidePieces []document.PieceChange `json:"outside_pieces,omitempty"`
	// UseUnknown says why every rule counts as in use. It is empty if their use is known.
	UseUnknown []string `json:"use_unknown,omitempty"`
	// Asleep is how many entries name a tier or a rule that the other document
	// lacks. They wake when the name is back.
	Asleep   int              `json:"asleep,omitempty"`
	Warnings []document.Error `json:"warnings,omitempty"`

	newlyAsleep []string // the entries that sleep only under the other document, such as "tenant=acme"
}

// RuleChange is a piece that changes, and how a rule is used.
type RuleChange struct {
	document.PieceChange
	InUse  bool  `json:"in_use,omitempty"`           // some check may have used the rule in the last hour
	Checks int64 `json:"checks_last_hour,omitempty"` // those that are known
}

// diffRules answers what a document would change, or what changed between two
// versions. It writes nothing.
func (s *Server) diffRules(w http.ResponseWriter, r *http.Request) error {
	body, give, err := s.readDocument(r)
	if err != nil {
		return err
	}
	defer give()
	sent := strings.TrimSpace(string(body)) != ""
	from, err := versionParam(r, "from")
	if err != nil {
		return err
	}
	to, err := versionParam(r, "to")
	switch {
	case err != nil:
		return err
	case sent && to != 0:
		return api.Errorf(api.BadValue, "to: a document was sent, too; leave out one of them")
	case !sent && r.URL.Query().Get("rule") != "":
		return api.Errorf(api.MissingKey, "the body is empty: send the rule's definition")
	case !sent && from == 0 && to == 0:
		return api.Errorf(api.MissingKey, "the body is empty: send a document, or name two versions, ?from=12&to=14")
	}

	// Comparing two documents is as much work as a write, but must not hold up
	// writes.
	release, err := acquire(r, s.diffs)
	if err != nil {
		return err
	}
	defer release()

	s.catchUp(w, r)
	before, number, err := s.documentOf(from)
	if err != nil {
		return err
	}
	d := &Difference{From: number}

	var after *document.Document
	number = 0 // a document that was sent has none yet
	name := r.URL.Query().Get("rule")
	switch {
	case sent && name != "":
		after, err = withRule(before, name, body)
	case sent:
		after, err = document.Review(body)
	default:
		after, number, err = s.documentOf(to)
	}
	if err != nil {
		return err
	}

	d.To = number
	s.compare(d, before, after)
	w.Header().Set("ETag", strconv.Quote(strconv.FormatInt(d.From, 10)))
	return s.reply(w, d)
}

// withRule returns doc with another definition of a rule, or with one more rule.
func withRule(doc *document.Document, name string, body []byte) (*document.Document, error) {
	if doc == nil {
		return nil, api.Errorf(api.NotReady, "there are no rules in force yet")
	}
	after, err := doc.Apply(document.Change{Part: document.RulePart, Name: name, Body: body})
	if err == nil && bytes.Equal(after.JSON(), doc.JSON()) {
		return doc, nil // only the rule's layout differs
	}
	return after, err
}

// versionParam reads a parameter that names a version, from 1; 0 if it is missing.
func versionParam(r *http.Request, name string) (int64, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n < 1 {
		return 0, api.Errorf(api.BadValue, "%s must be a whole number from 1", name)
	}
	return n, nil
}

// documentOf returns version n of the rules; with 0, the one in force and its
// number, or nil if there is none.
func (s *Server) documentOf(n int64) (*document.Document, int64, error) {
	set := s.doors.Decider.Rules()
	switch {
	case n == 0 && set == nil:
		return nil, 0, nil
	case set != nil && (n == 0 || n == set.Version):
		return set.Document, set.Version, nil
	}
	doc, err := s.config.Rules.Version(n)
	return doc, n, err
}

// compare fills in what changes from version d.From, whose document is before, to after.
func (s *Server) compare(d *Difference, before, after *document.Document) {
	changes := document.Diff(before, after)
	use := s.useOfRules()
	d.UseUnknown = s.reasonsUnknown(use)
	d.Changed = len(changes) > 0
	d.Changes = []RuleChange{}
	d.Warnings = after.Warnings()

	small := 0
	for _, c := range changes {
		if isSmall(&c) {
			small++
			if small > maxSmallChanges {
				d.LeftOut++
				continue
			}
		}

		change := RuleChange{PieceChange: c}
		if c.Kind == document.KindRule && c.Change != document.Added {
			change.Checks = use.Checks[c.Name]
			change.InUse = change.Checks > 0 || len(d.UseUnknown) > 0
		}

		if c.Kind == document.KindEnvoy && c.Change == document.Removed {
			change.Checks = use.Checks["envoy/"+c.Name]
			change.InUse = change.Checks > 0 || len(d.UseUnknown) > 0
		}

		d.Changes = append(d.Changes, change)
	}

	s.findOutside(d, before, after)
	s.findAsleep(d, before, after)
	d.Summary = d.summarize()
}

// maxSmallChanges bounds the changes of subjects and list entries in an answer.
// There may be 100,000 of them.
const maxSmallChanges = 1000

// isSmall reports whether a change is of a kind of which there may be very
// many.
func isSmall(c *document.PieceChange) bool {
	return c.Kind == document.KindSubject || c.Kind == document.KindDeny || c.Kind == document.KindAllow
}

// useOfRules asks all nodes and regions which rules were used in the last hour.
func (s *Server) useOfRules() *limiter.RuleUse {
	var regions []string
	for _, region := range s.config.Cluster.View().Regions {
		if region.Name != s.config.Region {
			regions = append(regions, region.Name)
		}
	}
	return s.config.Subjects.RuleUse(regions)
}

// reasonsUnknown returns why the use of rules is not known for all nodes and the whole hour.
func (s *Server) reasonsUnknown(use *limiter.RuleUse) (reasons []string) {
	for _, n := range s.nodeParts(use.Nodes) {
		if !n.Answered {
			reasons = append(reasons, fmt.Sprintf("node %s does not answer", n.Name))
		}
	}
	for _, region := range use.Silent {
		reasons = append(reasons, fmt.Sprintf("not all nodes of region %s answer", region))
	}
	if use.Counted < limiter.RuleUseWindow {
		reasons = append(reasons,
			fmt.Sprintf("a node has counted for %v only, not for an hour", use.Counted.Truncate(time.Second)))
	}
	return reasons
}

// findOutside finds the changes since the last applied document that are not in
// after. It does so only if before is the version in force: changes to older
// versions are no news.
func (s *Server) findOutside(d *Difference, before, after *document.Document) {
	set := s.doors.Decider.Rules()
	if set == nil || d.From != set.Version || !d.Changed {
		return
	}

	versions := s.config.Rules.Versions()
	at := slices.IndexFunc(versions, func(v rules.Version) bool { return v.Number == d.From })
	if at < 0 || versions[at].Applied == d.From {
		return
	}

	since := slices.DeleteFunc(slices.Clone(versions[at:]),
		func(v rules.Version) bool { return v.Number <= versions[at].Applied })
	slices.Reverse(since)

	applied, err := s.config.Rules.Version(versions[at].Applied)
	if err != nil {
		d.Outside = since // what they changed is no longer known
		return
	}

	d.OutsidePieces = document.NotIn(document.Diff(applied, before), after)
	if len(d.OutsidePieces) == 0 {
		return
	}

	touches := func(v rules.Version) bool {
		return slices.ContainsFunc(d.OutsidePieces, func(c document.PieceChange) bool { return changesPiece(v.What, &c) })
	}
	if slices.ContainsFunc(since, touches) {
		since = slices.DeleteFunc(since, func(v rules.Version) bool { return !touches(v) })
	}

	d.Outside = since
	d.OutsidePieces = d.OutsidePieces[:min(len(d.OutsidePieces), maxSmallChanges)]
}

// findAsleep finds the entries that sleep under a document.
func (s *Server) findAsleep(d *Difference, before, after *document.Document) {
	set := s.doors.Decider.Rules()
	if set == nil || set.Entries() == nil || !d.Changed {
		return
	}

	under := func(doc *document.Document) *rules.Set {
		if doc == nil || doc == set.Document {
			return set
		}
		compiled, err := rules.Compile(doc, set.Version)
		if err != nil {
			return set // writing it reports the error
		}
		return compiled.WithEntries(set.Entries(), nil)
	}

	setBefore, setAfter := under(before), under(after)
	d.Asleep = setAfter.Asleep()
	if d.Asleep == 0 {
		return
	}

	for _, e := range set.Entries().Sorted() {
		if setAfter.IsAsleep(e) && !setBefore.IsAsleep(e) {
			d.newlyAsleep = append(d.newlyAsleep, nameOf(e))
		}
	}
}

// nameOf names the subject of an entry that may sleep.
func nameOf(e *entries.Entry) string {
	if e.Kind == entries.Block {
		return fmt.Sprintf("a block of %q by rule %s", e.Key, e.Rule)
	}
	return fmt.Sprintf("%s=%q", e.Attribute, e.Value)
}

// changesPiece reports whether a version described by what, such as "delete
// rule login", may have changed a piece.
func changesPiece(what string, c *document.PieceChange) bool {
	what = strings.TrimPrefix(what, "delete ")
	switch {
	case what == "document":
		return true
	case c.Kind == document.KindDeny || c.Kind == document.KindAllow:
		return what == "list "+c.Kind
	}
	return what == c.String()
}

// maxSummary bounds the pieces that a sentence names.
const maxSummary = 10

// summarize says in sentences what the changes mean.
func (d *Difference) summarize() []string {
	if !d.Changed {
		return []string{"no change"}
	}

	var out []string
	count := map[string]int{}

	var used []string
	for i := range d.Changes {
		c := &d.Changes[i]
		if c.Kind != document.KindRule {
			continue
		}
		count[c.Change]++
		if c.Change == document.Removed && c.InUse {
			used = append(used, c.Name+" "+c.useText())
		}
	}

	for _, change := range []string{document.Removed, document.Changed, document.Added} {
		n := count[change]
		if n == 0 {
			continue
		}
		sentence := fmt.Sprintf("%s %s", plural(n, "rule"), change)
		if change == document.Removed && len(used) > 0 {
			sentence += "; " + joinSome(used)
		}
		out = append(out, sentence)
	}

	for i := range d.Changes {
		c := &d.Changes[i]
		if c.Anew != "" {
			out = append(out, fmt.Sprintf("%s: counts begin anew: %s", c.String(), c.Anew))
		}
	}

	if len(used) > 0 && len(d.UseUnknown) > 0 {
		out = append(out, "every rule counts as in use: "+joinSome(d.UseUnknown))
	}

	if n := len(d.newlyAsleep); n > 0 {
		verb := "sleep"
		if n == 1 {
			verb = "sleeps"
		}
		out = append(out,
			fmt.Sprintf("%s %s, because the tier or the rule is not in the document: %s",
				plural(n, "subject"), verb, joinSome(d.newlyAsleep)))
	}

	for i := range d.Outside {
		v := &d.Outside[i]
		out = append(out, fmt.Sprintf("version %d by %s (%s) is not in your file", v.Number, v.Writer(), v.What))
	}

	if len(out) == 0 {
		out = append(out, plural(len(d.Changes), "piece")+" changed")
	}

	return out
}

// useText describes how a removed rule was used.
func (c *RuleChange) useText() string {
	if c.Checks > 0 {
		return fmt.Sprintf("was in use: %s in the last hour", plural(int(c.Checks), "check"))
	}
	return "may be in use"
}

// plural writes a number of things, with commas between thousands.
func plural(n int, thing string) string {
	digits := strconv.Itoa(n)
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	if n != 1 {
		thing += "s"
	}
	return digits + " " + thing
}

// joinSome joins the first of list.
func joinSome(list []string) string {
	text := strings.Join(list[:min(len(list), maxSummary)], "; ")
	if more := len(list) - maxSummary; more > 0 {
		text += fmt.Sprintf("; and %d more", more)
	}
	return text
}

// notes says what a version changed that its writer may not expect: where counts begin anew.
func (s *Server) notes(version int64) (out []string) {
	after, number, err := s.documentOf(version)
	if err != nil || number != version {
		return nil
	}

	before, err := s.config.Rules.Version(version - 1)
	if err != nil {
		return nil // the first version, or one from another region
	}

	for _, c := range document.Diff(before, after) {
		if c.Anew != "" {
			out = append(out, fmt.Sprintf("%s: counts begin anew: %s", c.String(), c.Anew))
		}
	}

	return out
}
