package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// settings are the flags.
type settings struct {
	only       []string      // rows; none: all
	time       time.Duration // of one load
	rounds     int
	json       string
	keys       []int // of S1
	counters   []int // of S6
	changed    int   // of S8
	stored     int   // of S9
	given      string
	beside     string
	peer       string // of S10
	gubernator string // of S2
	cell       string // of S14
	increx     string // of S14
	root       string
	goTool     string
	loopback   string
}

const usage = `bench compares rlnode with the programs one would use instead, and prints a table in Markdown. It needs Linux and Go, and
for two of the rows redis-server. Progress goes to standard error. What the rows are: docs/performance.md.

`

// parseSettings reads the command line.
func parseSettings(args []string, stderr io.Writer) (settings, error) {
	var s settings
	var only, keys, counters string
	f := flag.NewFlagSet("bench", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the caller reports mistakes, once
	f.Usage = func() {}
	f.StringVar(&only, "only", "", "measure only these `rows`, such as S1,S4")
	f.DurationVar(&s.time, "time", 2*time.Second, "how long each load goes on")
	f.IntVar(&s.rounds, "rounds", 5, "how often what is compared takes turns")
	f.StringVar(&s.json, "json", "", "write all figures to this `file` too, as JSON")
	f.StringVar(&keys, "keys", "1000,100000,1000000", "`numbers` of keys in S1")
	f.StringVar(&counters, "counters", "1000000,10000000", "`numbers` of counters in S6")
	f.IntVar(&s.changed, "changed", 1_000_000, "changed counters in S8")
	f.IntVar(&s.stored, "stored", 10_000_000, "counters on disk in S9")
	f.StringVar(&s.given, "rlnode", "", "measure this `program` rather than building one from the checkout")
	f.StringVar(&s.beside, "beside", "",
		"in S2, S3, S10 and S16, measure this other rlnode `program` beside it, such as one of before a change")
	f.StringVar(&s.peer, "ratelimit", "",
		"in S10, measure this `program` of envoyproxy/ratelimit beside rlnode, if there is a redis-server")
	f.StringVar(&s.gubernator, "gubernator", "",
		"in S2, measure gubernator beside rlnode, built from this `folder` of its source")
	f.StringVar(&s.cell, "redis-cell", "",
		"in S14, measure the Redis server with redis-cell that this `command` starts")
	f.StringVar(&s.increx, "redis-increx", "",
		"in S14, measure the Redis server, of 8.8 or later, that this `command` starts")
	f.StringVar(&s.root, "root", "", "`folder` of the checkout (default: found above the working directory)")
	f.StringVar(&s.goTool, "go", "go", "the go `command`")
	f.StringVar(&s.loopback, "loopback", "127.0.41",
		"first three numbers of the loopback `addresses` that servers listen on")

	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(stderr)
			fmt.Fprint(stderr, usage)
			f.PrintDefaults()
		}
		return s, err
	}

	if f.NArg() > 0 {
		return s, fmt.Errorf("there is no argument %q", f.Arg(0))
	}

	var errs []error
	var err error
	if s.only, err = parseRows(only); err != nil {
		errs = append(errs, err)
	}
	if s.keys, err = parseCounts("-keys", keys); err != nil {
		errs = append(errs, err)
	}
	if s.counters, err = parseCounts("-counters", counters); err != nil {
		errs = append(errs, err)
	}

	return s, errors.Join(append(errs, s.check(), s.complete())...)
}

// check checks the settings that depend on nothing else.
func (s *settings) check() error {
	address, err := netip.ParseAddr(s.loopback + ".1")
	switch {
	case s.time < 10*time.Millisecond || s.time > time.Minute:
		return fmt.Errorf("-time: %v is not in 10ms…1m", s.time)
	case s.rounds < 1 || s.rounds > 100:
		return fmt.Errorf("-rounds: %d is not in 1…100", s.rounds)
	case s.changed < 1000 || s.changed > 5_000_000:
		return fmt.Errorf("-changed: %d is not in 1,000…5,000,000", s.changed)
	case s.stored < 1 || s.stored > 100_000_000:
		return fmt.Errorf("-stored: %d is not in 1…100,000,000", s.stored)
	case err != nil || !address.IsLoopback():
		return fmt.Errorf("-loopback: %q is not the beginning of a loopback address", s.loopback)
	}

	return nil
}

// complete finds the checkout, and makes paths absolute, because processes have
// their own working directories.
func (s *settings) complete() error {
	for _, path := range []*string{&s.given, &s.beside, &s.peer, &s.gubernator} {
		if *path == "" {
			continue
		}

		full, err := filepath.Abs(*path)
		if err != nil {
			return fmt.Errorf("find %s: %w", *path, err)
		}
		if _, err := os.Stat(full); err != nil {
			return fmt.Errorf("find what a flag names: %w", err)
		}

		*path = full
	}

	if s.root != "" {
		return nil
	}

	dir, err := os.Getwd()
	if err != nil {
		return fmt.Errorf("find the working directory: %w", err)
	}

	for {
		if _, err := os.Stat(filepath.Join(dir, "cmd", "rlnode")); err == nil {
			s.root = dir
			return nil
		}
		up := filepath.Dir(dir)
		if up == dir {
			return errors.New("this is not inside of a checkout of rlnode: say where it is by -root")
		}
		dir = up
	}
}

// parseRows parses the requested rows.
func parseRows(text string) ([]string, error) {
	var rows []string
	if text == "" {
		return nil, nil
	}

	for name := range strings.SplitSeq(text, ",") {
		name = strings.ToUpper(strings.TrimSpace(name))
		known := slices.ContainsFunc(experiments(), func(e experiment) bool { return slices.Contains(e.rows, name) })
		if !known {
			return nil, fmt.Errorf("-only: there is no row %q", name)
		}
		rows = append(rows, name)
	}

	return rows, nil
}

// parseCounts parses numbers from 1 to a hundred million.
func parseCounts(flag, text string) ([]int, error) {
	var counts []int
	for part := range strings.SplitSeq(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 || n > 100_000_000 {
			return nil, fmt.Errorf("%s: %q is not a number in 1…100,000,000", flag, part)
		}
		counts = append(counts, n)
	}
	return counts, nil
}
