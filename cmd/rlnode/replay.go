package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/rlnode/rlnode/api/admin"
	"github.com/rlnode/rlnode/node"
	"github.com/rlnode/rlnode/replay"
	"github.com/rlnode/rlnode/rules"
	"github.com/rlnode/rlnode/rules/document"
	"github.com/rlnode/rlnode/rules/entries"
)

// replayCmd tries rules on logs.
type replayCmd struct {
	Logs        []string `arg:"" name:"log" help:"Logs in Common or Combined Log Format or JSON lines, also compressed with gzip; - is standard input."`
	Rules       string   `required:"" placeholder:"FILE|DIR" help:"The rules file, or a directory whose files are one document."`
	Entries     string   `placeholder:"FILE" help:"Entries beside the rules, from backup or entries --json: each is in force from when it was written until its end."`
	JSON        bool     `help:"Print only JSON to standard output."`
	Decisions   string   `placeholder:"FILE" help:"Write each decision to this file, as JSON lines in order of time; - is standard output."`
	Top         int      `default:"20" help:"How many of the most refused subjects to list (default ${default})."`
	MaxCounters int64    `default:"10000000" help:"Bound on counters in memory (default ${default})."`
	Against     string   `placeholder:"FILE|N" help:"Compare with another rules file, or with a version of a node's rules: who is newly refused, and who no longer."`
	adminPlane
}

// validate reports mistakes on the command line.
func (c *replayCmd) validate() error {
	if c.JSON && c.Decisions == "-" {
		return usageError("--json and --decisions - both write to standard output")
	}

	ins := 0
	for _, name := range append([]string{c.Rules, c.Against, c.Entries}, c.Logs...) {
		if name == "-" {
			ins++
		}
	}

	if ins > 1 {
		return usageError("standard input (-) can be read only once")
	}
	if c.Top < 0 {
		return usageError("--top: %d is below 0", c.Top)
	}
	if c.MaxCounters < 1 || c.MaxCounters > node.MaxCounters {
		return usageError("--max-counters: %d is not in 1…%d", c.MaxCounters, int64(node.MaxCounters))
	}

	return nil
}

// Run replays the logs and prints the report.
func (c *replayCmd) Run(env *environment) error {
	if err := c.validate(); err != nil {
		return err
	}

	set, err := c.compile(env)
	if err != nil {
		return err
	}

	against, err := c.compileAgainst(env)
	if err != nil {
		return err
	}

	if c.Entries != "" {
		beside, err := c.readEntries(env)
		if err != nil {
			return err
		}
		set = set.WithPastEntries(beside)
		if against != nil {
			against = against.WithPastEntries(beside)
		}
	}

	progress := newProgress(env.stderr)
	defer progress.clear()

	inputs, closeAll, err := openLogs(env, c.Logs, progress)
	if err != nil {
		return err
	}
	defer closeAll()

	config := replay.DefaultConfig(set)
	config.Against = against
	config.MaxCounters = c.MaxCounters
	config.Top = c.Top
	config.Progress = progress.update

	decisions, err := c.openDecisions(env)
	if err != nil {
		return err
	}
	if decisions != nil {
		config.Decisions = decisions
	}

	report, err := replay.Run(env.ctx, config, inputs...)
	if decisions != nil && decisions != env.stdout {
		err = errors.Join(err, decisions.(io.Closer).Close())
	}
	progress.clear()

	switch {
	case errors.Is(err, context.Canceled):
		return errors.New("interrupted")
	case err != nil:
		return err
	}

	if err := c.print(env, report); err != nil {
		return err
	}
	if report.Checks == 0 {
		return errors.New("the rules were not tried: the log has no line that is a check")
	}

	return nil
}

func (c *replayCmd) print(env *environment, report *replay.Report) error {
	if !c.JSON {
		out := env.stdout
		if c.Decisions == "-" {
			out = env.stderr
		}
		return report.Print(out)
	}

	for _, s := range report.SkippedLines {
		fmt.Fprintf(env.stderr, "skipped %s\n", s)
	}

	if more := report.Skipped - int64(len(report.SkippedLines)); more > 0 {
		fmt.Fprintf(env.stderr, "skipped %d more lines\n", more)
	}

	return json.NewEncoder(env.stdout).Encode(report)
}

// readEntries reads the entries of --entries.
func (c *replayCmd) readEntries(env *environment) (*entries.State, error) {
	text, err := readFile(env, c.Entries, maxBackup)
	if err != nil {
		return nil, err
	}

	var file struct {
		Entries []*admin.EntryItem `json:"entries"`
	}
	if err := json.Unmarshal(text, &file); err != nil {
		return nil, fmt.Errorf("read %s: %w", shownName(c.Entries), err)
	}

	state := entries.New()
	for i, item := range file.Entries {
		if item == nil {
			return nil, fmt.Errorf("read %s: entry %d is null", shownName(c.Entries), i)
		}

		e, err := document.ReadStored(item.Kind, item.Entry)
		if err == nil {
			state, err = state.With(entries.Change{Entry: e, When: e.When})
		}

		if err != nil {
			return nil, fmt.Errorf("read %s: entry %d: %w", shownName(c.Entries), i, err)
		}
	}

	return state, nil
}

// compile reads the rules. Mistakes and warnings go to standard error.
func (c *replayCmd) compile(env *environment) (*rules.Set, error) {
	doc, err := loadRules(env, c.Rules, document.Parse, env.stderr, env.stderr)
	if err != nil {
		return nil, err
	}

	set, err := rules.Compile(doc, 1)
	if err != nil {
		return nil, fmt.Errorf("compile %s: %w", c.Rules, err)
	}
	return set, nil
}

// compileAgainst reads the rules to compare with, from a file or a node; nil without --against.
func (c *replayCmd) compileAgainst(env *environment) (*rules.Set, error) {
	if c.Against == "" {
		return nil, nil
	}

	number, err := strconv.ParseInt(c.Against, 10, 64)
	if err != nil || fileExists(c.Against) {
		doc, err := loadRules(env, c.Against, document.Parse, env.stderr, io.Discard)
		if err != nil {
			return nil, err
		}
		return rules.Compile(doc, 1)
	}

	if number < 1 {
		return nil, usageError("--against: %d is not a version: they begin with 1", number)
	}

	n, err := c.client()
	if err != nil {
		return nil, err
	}

	reply, err := n.send(env.ctx,
		request{path: "/v1/rules", accept: "application/yaml", query: url.Values{"version": {c.Against}}})
	if err != nil {
		return nil, err
	}

	doc, err := document.Parse(reply.body)
	if err != nil {
		return nil, fmt.Errorf("read version %d of the rules: %w", number, err)
	}

	return rules.Compile(doc, 1)
}

// openDecisions opens the writer for decisions; nil without --decisions.
func (c *replayCmd) openDecisions(env *environment) (io.Writer, error) {
	switch c.Decisions {
	case "":
		return nil, nil
	case "-":
		return env.stdout, nil
	}

	// A typo must not overwrite a log or the rules.
	if info, err := os.Stat(c.Decisions); err == nil {
		for _, name := range append([]string{c.Rules, c.Against, c.Entries}, c.Logs...) {
			if in, err := os.Stat(name); err == nil && os.SameFile(info, in) {
				return nil, usageError("--decisions: %s is one of the inputs", c.Decisions)
			}
		}
	}

	return os.Create(c.Decisions)
}

// openLogs opens all logs before the first is read, so that a wrong name is reported at once.
func openLogs(env *environment, names []string, p *progress) (inputs []replay.Input, closeAll func(), err error) {
	var files []*os.File
	closeAll = func() {
		for _, f := range files {
			f.Close() // read-only
		}
	}
	for _, name := range names {
		in := env.stdin
		if name != "-" {
			f, err := os.Open(name)
			if err != nil {
				closeAll()
				return nil, nil, err
			}

			files = append(files, f)
			if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
				p.total += info.Size()
			}

			in = io.TeeReader(f, p)
		}

		inputs = append(inputs, replay.Input{Name: shownName(name), Reader: in})
	}

	return inputs, closeAll, nil
}

// progress is a progress bar on a terminal; elsewhere it shows nothing. Only
// one goroutine may use it.
type progress struct {
	w           io.Writer // nil if not a terminal
	total, read int64     // bytes of the logs
	last        time.Time
	shown       bool
}

func newProgress(w io.Writer) *progress {
	p := &progress{}
	if isTerminal(w) {
		p.w = w
	}
	return p
}

// Write counts what was read of a log.
func (p *progress) Write(b []byte) (int, error) {
	p.read += int64(len(b))
	return len(b), nil
}

// update draws the bar, at most ten times a second. Reading is the first half, deciding the second.
func (p *progress) update(lines, decided int64) {
	now := time.Now()
	if p.w == nil || now.Sub(p.last) < 100*time.Millisecond {
		return
	}

	p.last = now
	p.shown = true
	const width = 40

	done := 0.0
	switch {
	case decided > 0:
		done = 0.5 + 0.5*float64(decided)/float64(max(lines, 1))
	case p.total > 0:
		done = 0.5 * float64(p.read) / float64(p.total)
	}

	full := int(min(done, 1) * width)
	fmt.Fprintf(p.w, "\r[%s%s] %d lines read, %d decided", strings.Repeat("=", full),
		strings.Repeat(" ", width-full), lines, decided)
}

// clear removes the bar.
func (p *progress) clear() {
	if p.shown {
		fmt.Fprint(p.w, "\r\x1b[K")
		p.shown = false
	}
}
