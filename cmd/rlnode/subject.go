package main

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/replay"
	"github.com/rlnode/rlnode/rules/entries"
)

// subjectCmd shows one subject, or changes the entry about one.
type subjectCmd struct {
	Show  subjectShowCmd  `cmd:"" default:"withargs" help:"Show what a subject has used (default)."`
	Set   subjectSetCmd   `cmd:"" help:"Give a subject another tier, or limits of its own, beside the document."`
	Unset subjectUnsetCmd `cmd:"" help:"Remove the entry about a subject."`
}

// subjectShowCmd shows one subject.
type subjectShowCmd struct {
	subjectFlags
	usageFlags
}

func (c *subjectShowCmd) Run(env *environment) error {
	return c.show(env, &c.subjectFlags, printSubject)
}

// usageFlags has the flags of commands that print what a subject has used,
// after a change or without one.
type usageFlags struct {
	JSON bool `help:"Print the node's answer unchanged."`
	eitherPlane
}

// show asks what a subject has used. Only the admin plane knows the owner and
// the shares of a rule's subject, and only the data plane knows limits that
// come with the call.
func (f *usageFlags) show(env *environment, subject *subjectFlags, text func(io.Writer, *subjectAnswer) error) error {
	fields, err := subject.fields()
	if err != nil {
		return err
	}
	if subject.isInline() || f.onlyData() {
		return sendAndPrint(env, f.data, f.JSON, postFields("/v1/usage", fields), text)
	}
	r := request{path: "/v1/usage", query: subjectQuery(subject.Rule, subject.Key)}
	return sendAndPrint(env, f.admin, f.JSON, r, text)
}

// subjectAnswer is a node's answer about a subject.
type subjectAnswer struct {
	Rule      string           `json:"rule"`
	Namespace string           `json:"namespace"`
	Key       admin.SubjectKey `json:"key"`
	Owner     string           `json:"owner"`
	Limits    []struct {
		Name      string `json:"name"`
		Algorithm string `json:"algorithm"`
		Unit      string `json:"unit"`
		Limit     int64  `json:"limit"`
		Share     int64  `json:"share"`
		Used      int64  `json:"used"`
		Leased    int64  `json:"leased"`
		Remaining int64  `json:"remaining"`
		WindowMS  int64  `json:"window_ms"`
		ResetMS   int64  `json:"reset_after_ms"`
		Estimated bool   `json:"estimated"`
		Unlimited bool   `json:"unlimited"`

		// These are of a limit of slots, which has no window.
		TTLMS   int64      `json:"ttl_ms"`
		Holders int        `json:"holders"`
		Slots   []heldSlot `json:"slots"`
	} `json:"limits"`
	Unknown  int `json:"unknown"`
	Adaptive *struct {
		Source string   `json:"source"`
		Load   *float64 `json:"load"`
		Factor float64  `json:"factor"`
	} `json:"adaptive"`
	Shares  map[string]int64              `json:"shares"`
	Regions map[string]admin.RegionReport `json:"regions"`
	Blocked int64                         `json:"blocked_until_ms"`
	Applied map[string]int64              `json:"applied"` // by unit; only of an adjustment
}

// heldSlot is a slot in a node's answer.
type heldSlot struct {
	Slot      string `json:"slot"`
	N         int64  `json:"n"`
	AgeMS     int64  `json:"age_ms"`
	ExpiresMS int64  `json:"expires_ms"`
	Who       string `json:"who"`
}

func printSubject(w io.Writer, s *subjectAnswer) error {
	fmt.Fprintf(w, "%s: %s", printable(cmp.Or(s.Rule, s.Namespace)), replay.Key(s.Key))
	if s.Owner != "" {
		fmt.Fprintf(w, "  (owner %s)", printable(s.Owner))
	}

	fmt.Fprintln(w)
	rows := make([]string, len(s.Limits))

	estimated := false
	for i, l := range s.Limits {
		unit := "-" // an unlimited limit may be for all units
		if l.Unit != "" {
			unit = printable(l.Unit)
		}

		fresh := durationText(millis(l.ResetMS))
		if s.Blocked == entries.Forever {
			fresh = "-"
		}

		if l.Unlimited {
			rows[i] = strings.Join([]string{printable(l.Name), "unlimited", "-", "-", "-", "-", "-",
				unit, "-", "-"}, "\t")
			continue
		}
		rows[i] = strings.Join([]string{
			printable(l.Name),
			l.Algorithm,
			strconv.FormatInt(l.Used, 10),
			strconv.FormatInt(l.Limit, 10),
			strconv.FormatInt(l.Remaining, 10),
			strconv.FormatInt(l.Leased, 10),
			strconv.FormatInt(l.Share, 10),
			unit,
			durationText(millis(max(l.WindowMS, l.TTLMS))),
			fresh,
		}, "\t")
		estimated = estimated || l.Estimated
	}

	if len(rows) > 0 {
		if err := printTable(w,
			"LIMIT\tALGORITHM\tUSED\tOF\tLEFT\tLEASED\tSHARE\tUNIT\tPER\tFRESH AFTER", rows,
			func(row string) string { return row }); err != nil {
			return err
		}
	} else if s.Unknown == 0 {
		fmt.Fprintln(w, "nothing is counted")
	}

	for _, unit := range slices.Sorted(maps.Keys(s.Applied)) {
		fmt.Fprintf(w, "applied: %d %s\n", s.Applied[unit], printable(unit))
	}

	if estimated {
		fmt.Fprintln(w, "an estimate: a node did not say how much it holds, and that counts as used")
	}
	if s.Unknown > 0 {
		fmt.Fprintf(w, "%d more counters, of limits that this node has not seen: name them with --limit\n", s.Unknown)
	}
	switch {
	case s.Blocked == entries.Forever:
		fmt.Fprintln(w, "blocked without an end; rlnode unblock lifts it")
	case s.Blocked > 0:
		fmt.Fprintf(w, "blocked until %s\n", time.UnixMilli(s.Blocked).UTC().Format(time.RFC3339))
	}

	if a := s.Adaptive; a != nil {
		load := "not known"
		if a.Load != nil {
			load = fmt.Sprintf("%g", *a.Load)
		}
		fmt.Fprintf(w, "adaptive: limits are lowered to %g of the rule's; the load of %s is %s\n",
			a.Factor, printable(a.Source), load)
	}

	return printShares(w, s)
}

// printShares prints the regions' parts of a subject's limits, if they share them.
func printShares(w io.Writer, s *subjectAnswer) error {
	if len(s.Shares) == 0 && len(s.Regions) == 0 {
		return nil
	}

	var rows []string
	for _, name := range slices.Sorted(maps.Keys(s.Regions)) {
		r := s.Regions[name]
		for _, l := range r.Limits {
			rows = append(rows,
				fmt.Sprintf("%s\t%s\t%d\t%d\t%d\t%d\t%d", printable(name), printable(l.Name),
					l.Share, l.Own, l.Lent, l.Borrowed, l.Remaining))
		}
		if len(r.Limits) == 0 {
			rows = append(rows, printable(name)+"\t-\tdoes not answer")
		}
	}

	if len(rows) == 0 {
		for _, name := range slices.Sorted(maps.Keys(s.Shares)) {
			rows = append(rows, fmt.Sprintf("%s\t-\t%d", printable(name), s.Shares[name]))
		}
	}

	fmt.Fprintln(w)
	return printTable(w, "REGION\tLIMIT\tSHARE\tUSED\tLENT\tBORROWED\tLEFT", rows,
		func(row string) string { return row })
}

// changeFlags has the flags of commands that change what a subject has used.
type changeFlags struct {
	subjectFlags
	LimitName *string `name:"limit-name" placeholder:"NAME" help:"Only this one of the subject's limits, as subject shows its name; the block stays."`
	RequestID *string `name:"request-id" placeholder:"ID" help:"ID of this change, at most 64 bytes. Repeating it within a minute changes nothing and gets the same answer."`
	usageFlags
}

// postChange makes a call and prints the usage after it.
func (f *changeFlags) postChange(env *environment, path string, fields map[string]any) error {
	if f.RequestID != nil {
		fields["request_id"] = *f.RequestID
	}
	if f.LimitName != nil { // the node refuses an empty one: it must not mean all limits
		fields["limit_name"] = *f.LimitName
	}
	return sendAndPrint(env, f.data, f.JSON, postFields(path, fields), printSubject)
}

// resetCmd makes a subject's counters fresh.
type resetCmd struct{ changeFlags }

func (c *resetCmd) Run(env *environment) error {
	fields, err := c.fields()
	if err != nil {
		return err
	}
	return c.postChange(env, "/v1/reset", fields)
}

// adjustCmd adds to what a subject has used.
type adjustCmd struct {
	Cost []string `required:"" sep:"none" placeholder:"N|UNIT=N" help:"How much to add, or to give back if negative; repeat for more units."`
	Bill bool     `help:"Correct the bill, too, of a rule with usage: monthly."`
	changeFlags
}

func (c *adjustCmd) Run(env *environment) error {
	fields, err := c.fields()
	if err != nil {
		return err
	}
	if c.Namespace != "" && len(c.Limit) == 0 {
		return usageError("--limit is missing: the limits to adjust")
	}

	amounts, err := parseCosts(c.Cost)
	if err != nil {
		return err
	}

	amounts.add(fields)
	if c.Bill {
		fields["bill"] = true
	}

	return c.postChange(env, "/v1/adjust", fields)
}
