// Command release builds everything that a release has: archives, packages for
// Debian and Red Hat, lists of the modules in the binaries, the chart, the
// dashboard, the alerts, and checksums. The same commit always gives the same
// bytes.
package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime/debug"
	"slices"
	"strings"
	"time"
)

func main() {
	var r release
	platforms := flag.String("platforms", "linux/amd64,linux/arm64,darwin/amd64,darwin/arm64",
		"comma-separated targets, as GOOS/GOARCH")
	flag.StringVar(&r.version, "version", "", "the release, such as v1.2.3; the commit must have it as a tag")
	flag.StringVar(&r.root, "root", ".", "the repository")
	flag.StringVar(&r.out, "out", "bin/release", "folder for the results; its contents are removed first")
	flag.BoolVar(&r.snapshot, "snapshot", false, "build a trial: allow changes, and a commit without the tag")
	flag.Parse()

	for _, p := range strings.Split(*platforms, ",") {
		system, arch, _ := strings.Cut(p, "/")
		r.platforms = append(r.platforms, platform{system: system, arch: arch})
	}

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if err := r.buildAll(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

// release holds the settings of a release and its commit.
type release struct {
	version   string // with the leading v
	root      string
	out       string
	snapshot  bool
	platforms []platform
	work      string // where to build binaries; empty for a temporary folder

	revision string
	date     time.Time // of the commit
}

// platform is a target of go build.
type platform struct{ system, arch string }

// number returns the version without the v.
func (r *release) number() string { return strings.TrimPrefix(r.version, "v") }

// name returns the base name of a platform's files.
func (r *release) name(p platform) string {
	return fmt.Sprintf("rlnode_%s_%s_%s", r.number(), p.system, p.arch)
}

// path returns the path of a file in the repository.
func (r *release) path(name string) string { return filepath.Join(r.root, name) }

var versionPattern = regexp.MustCompile(`^v(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)(-[0-9A-Za-z]+(\.[0-9A-Za-z]+)*)?$`)

// buildAll builds the release.
func (r *release) buildAll(ctx context.Context) error {
	if err := r.checkCommit(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(r.out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return err
	}

	work := r.work
	if work == "" {
		var err error
		if work, err = os.MkdirTemp("", "rlnode-release-*"); err != nil {
			return err
		}
		defer os.RemoveAll(work)
	}

	for _, p := range r.platforms {
		binary := filepath.Join(work, r.name(p))
		if err := r.build(ctx, p, binary); err != nil {
			return fmt.Errorf("build for %s/%s: %w", p.system, p.arch, err)
		}

		steps := []func(platform, string) error{r.writeArchive, r.writeModuleList}
		if p.system == "linux" {
			steps = append(steps, r.writePackages)
		}

		for _, step := range steps {
			if err := step(p, binary); err != nil {
				return fmt.Errorf("%s/%s: %w", p.system, p.arch, err)
			}
		}
	}

	if err := r.writeChart(); err != nil {
		return fmt.Errorf("chart: %w", err)
	}

	for from, to := range map[string]string{"deploy/grafana/rlnode.json": "rlnode-board.json",
		"deploy/prometheus/alerts.yaml": "rlnode-alerts.yaml"} {
		text, err := os.ReadFile(r.path(from))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(r.out, to), text, 0o644); err != nil {
			return err
		}
	}

	return r.writeChecksums()
}

// checkCommit sets the commit's revision and date and, unless r is a snapshot,
// checks that it is a clean commit with the tag.
func (r *release) checkCommit(ctx context.Context) error {
	if !versionPattern.MatchString(r.version) {
		return fmt.Errorf("-version: %q is not a version such as v1.2.3", r.version)
	}

	var err error
	if r.revision, err = r.git(ctx, "rev-parse", "HEAD"); err != nil {
		return err
	}

	date, err := r.git(ctx, "log", "-1", "--format=%cI")
	if err != nil {
		return err
	}
	if r.date, err = time.Parse(time.RFC3339, date); err != nil {
		return err
	}

	r.date = r.date.UTC()
	if r.snapshot {
		return nil
	}

	changes, err := r.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changes != "" {
		return fmt.Errorf("there are uncommitted changes:\n%s", changes)
	}

	tags, err := r.git(ctx, "tag", "--points-at", "HEAD")
	if err != nil {
		return err
	}
	if !slices.Contains(strings.Fields(tags), r.version) {
		return fmt.Errorf("the commit %.12s does not have the tag %s", r.revision, r.version)
	}

	return nil
}

func (r *release) git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.root}, args...)...).Output()
	var failed *exec.ExitError
	if errors.As(err, &failed) {
		return "", fmt.Errorf("git %v: %w: %s", args, err, failed.Stderr)
	}
	return strings.TrimSpace(string(out)), err
}

// build builds a static binary.
func (r *release) build(ctx context.Context, p platform, to string) error {
	to, err := filepath.Abs(to)
	if err != nil {
		return err
	}

	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", strings.Join([]string{
		"-s -w -X github.com/rlnode/rlnode/node.release=" + r.version,
		"-X main.revision=" + r.revision, "-X main.date=" + r.date.Format(time.RFC3339),
	}, " "), "-o", to, "./cmd/rlnode")
	cmd.Dir = r.root
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+p.system, "GOARCH="+p.arch,
		"GOAMD64=v1", "GOARM64=v8.0", "GOFLAGS=")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w\n%s", err, out)
	}

	return nil
}

// writeChecksums writes the checksums of all files.
func (r *release) writeChecksums() error {
	entries, err := os.ReadDir(r.out)
	if err != nil {
		return err
	}

	var lines strings.Builder
	for _, e := range entries { // sorted by name
		sum, err := fileSum(filepath.Join(r.out, e.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&lines, "%x  %s\n", sum, e.Name())
	}

	return os.WriteFile(filepath.Join(r.out, "SHA256SUMS"), []byte(lines.String()), 0o644)
}

func fileSum(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return nil, err
	}
	return h.Sum(nil), nil
}

// modules returns the modules of a binary, or those that replace them.
func modules(info *debug.BuildInfo) []*debug.Module {
	var all []*debug.Module
	for _, m := range info.Deps {
		all = append(all, cmp.Or(m.Replace, m))
	}
	return all
}
