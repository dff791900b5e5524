package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"time"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "curves:", err)
		os.Exit(1)
	}
}

// options are the flags.
type options struct {
	out         string
	draw, quick bool
	only        string

	opened []func() // close what the current plot uses
}

func run(ctx context.Context, args []string) error {
	var o options
	flags := flag.NewFlagSet("curves", flag.ContinueOnError)
	flags.StringVar(&o.out, "out", "curves", "folder for the CSV files and the plots")
	flags.BoolVar(&o.draw, "draw", false, "only draw what the CSV files say")
	flags.BoolVar(&o.quick, "quick", false, "small sizes: to see that it works")
	flags.StringVar(&o.only, "only", "", "measure only this: keys, rules, subjects, goroutines, log or nodes")

	if err := flags.Parse(args); err != nil {
		return err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return err
	}

	if !o.draw {
		if err := measureAll(ctx, &o); err != nil {
			return err
		}
	}

	return drawAll(&o)
}

// wants reports whether the plots of that name are to be measured.
func (o *options) wants(name string) bool { return o.only == "" || o.only == name }

// measureAll writes the CSV files.
func measureAll(ctx context.Context, o *options) error {
	for _, step := range []struct {
		name    string
		measure func(*options) (map[string][]point, error)
	}{
		{"keys", measureKeys}, {"rules", measureRules}, {"subjects", measureSubjects},
		{"goroutines", measureGoroutines}, {"log", measureLog},
	} {
		if !o.wants(step.name) {
			continue
		}

		began := time.Now()
		files, err := step.measure(o)
		o.close()

		if err != nil {
			return fmt.Errorf("measure %s: %w", step.name, err)
		}

		for name, points := range files {
			if err := writePoints(filepath.Join(o.out, name+".csv"), points); err != nil {
				return err
			}
		}

		fmt.Printf("%-10s %v\n", step.name, time.Since(began).Round(time.Second))
		runtime.GC()

		if err := ctx.Err(); err != nil {
			return err
		}
	}

	if o.wants("nodes") {
		return countNodes(ctx, o)
	}

	return nil
}

// countNodes runs the test that counts messages, because virtual time exists only in tests.
func countNodes(ctx context.Context, o *options) error {
	out, err := filepath.Abs(o.out)
	if err != nil {
		return err
	}

	args := []string{"test", "-count", "1", "-timeout", "20m", "-run", "^TestNodes$",
		"github.com/rlnode/rlnode/test/bench/curves", "-args", "-out", out}
	if !o.quick {
		args = append(args, "-whole")
	}

	began := time.Now()
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Stderr = os.Stderr

	if text, err := cmd.Output(); err != nil {
		return fmt.Errorf("count messages: %w\n%s", err, text)
	}

	fmt.Printf("%-10s %v\n", "nodes", time.Since(began).Round(time.Second))
	return nil
}

// drawAll draws plots from the CSV files.
func drawAll(o *options) error {
	for _, f := range figures {
		path := filepath.Join(o.out, f.name)
		if _, err := os.Stat(path + ".csv"); err != nil {
			continue
		}

		points, err := readPoints(path + ".csv")
		if err != nil {
			return err
		}
		if err := f.draw(points, path+".svg"); err != nil {
			return fmt.Errorf("draw %s: %w", f.name, err)
		}
	}

	return nil
}
