package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "worker" {
		if err := runWorker(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, "bench worker:", err)
			os.Exit(1)
		}
		return
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	switch err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); {
	case err == nil, errors.Is(err, flag.ErrHelp):
	case errors.Is(err, context.Canceled):
		fmt.Fprintln(os.Stderr, "bench: stopped")
		os.Exit(130)
	default:
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// bench is one run.
type bench struct {
	settings
	dir      string // for all files written; removed at the end
	program  string // the rlnode under test
	procs    *processes
	caller   *caller
	report   *report
	progress func(string)
}

// warm is how long a load runs before it counts.
func (b *bench) warm() time.Duration { return max(b.time/10, 50*time.Millisecond) }

// host returns a loopback address, the same for the same server in each run.
func (b *bench) host(i int) string { return fmt.Sprintf("%s.%d", b.loopback, i) }

// wants reports whether a row was requested.
func (b *bench) wants(row string) bool { return len(b.only) == 0 || slices.Contains(b.only, row) }

// experiment measures rows that share a setup.
type experiment struct {
	rows []string
	run  func(*bench, context.Context) error
}

func experiments() []experiment {
	return []experiment{
		{[]string{"S1", "S12"}, (*bench).inProcess},
		{[]string{"S2", "S3"}, (*bench).overHTTP},
		{[]string{"S4", "S5", "S7", "S15"}, (*bench).inCluster},
		{[]string{"S6"}, (*bench).memory},
		{[]string{"S8"}, (*bench).underCheckpoints},
		{[]string{"S9"}, (*bench).fromDisk},
		{[]string{"S10"}, (*bench).asEnvoy},
		{[]string{"S11"}, (*bench).atRest},
		{[]string{"S14"}, (*bench).asRedis},
		{[]string{"S16"}, (*bench).memoryOfConnections},
	}
}

// run measures and prints. It reports failures, and continues with the other experiments.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (err error) {
	b := &bench{report: &report{}, caller: newCaller()}
	if b.settings, err = parseSettings(args, stderr); err != nil {
		return err
	}

	start := time.Now()
	b.progress = func(what string) { fmt.Fprintf(stderr, "%4.0fs  %s\n", time.Since(start).Seconds(), what) }

	if b.dir, err = os.MkdirTemp("", "rlnode-bench-"); err != nil {
		return fmt.Errorf("make a temporary directory: %w", err)
	}

	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()

	if err := b.build(ctx); err != nil {
		return err
	}

	b.procs = newProcesses(b.dir)
	defer b.procs.close()

	failed := b.measure(ctx)

	if ctx.Err() != nil {
		return ctx.Err()
	}

	m := thisMachine(ctx, b.root)
	if err := b.report.markdown(stdout, m, b.how(time.Since(start))); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}

	if b.json != "" {
		if err := b.report.writeJSON(b.json, m, b.settings); err != nil {
			return err
		}
	}

	if failed {
		return errors.New("not everything could be measured")
	}

	return nil
}

// measure runs the requested experiments, one after another.
func (b *bench) measure(ctx context.Context) (failed bool) {
	for _, e := range experiments() {
		rows := slices.DeleteFunc(slices.Clone(e.rows), func(r string) bool { return !b.wants(r) })
		if len(rows) == 0 {
			continue
		}

		b.progress(strings.Join(rows, ", "))

		if err := e.run(b, ctx); err != nil {
			if ctx.Err() != nil {
				return true
			}
			failed = true
			b.report.fail(rows, err)
			b.progress(fmt.Sprintf("%s: %v", strings.Join(rows, ", "), err))
		}
	}

	return failed
}

// build builds the program to measure, unless one was given.
func (b *bench) build(ctx context.Context) error {
	b.program = b.given
	if b.program != "" {
		return nil
	}
	b.progress("building rlnode")
	b.program = filepath.Join(b.dir, "rlnode")
	return b.compile(ctx, b.root, b.program, "./cmd/rlnode")
}

// how describes the duration and rounds of the measurement.
func (b *bench) how(took time.Duration) string {
	return fmt.Sprintf("%d rounds in turns, %v for each load; medians. The whole run took %v.",
		b.rounds, b.time, took.Round(time.Second))
}
