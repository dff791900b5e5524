// Package house enforces the project's floor plan: which package may import
// which, how many folders the root may have, how long functions may be, and
// which calls only commands may make.
package house

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

const (
	root   = "../.."
	module = "github.com/rlnode/rlnode/"

	maxFunctionLines = 100
	maxFolders       = 20 // in the root
)

// floorPlan lists all packages from the bottom to the top, and what each may
// import of the project: packages below it, and nothing else. Tests may import
// what they like.
var floorPlan = []struct {
	name      string
	mayImport []string
}{
	// Tools that know nothing of the product.
	{"internal/hashilog", nil},
	{"internal/ipaddr", nil},
	{"internal/latency", nil},
	{"internal/metrics", nil},
	{"internal/rawconn", nil},
	{"internal/reload", nil},
	{"internal/tasks", nil},
	{"internal/tick", nil},
	{"internal/tracing", nil},
	{"internal/wake", nil},
	{"internal/wire", nil},
	{"internal/yaml", nil},

	// Tools of tests.
	{"internal/expect", nil},
	{"internal/golden", nil},
	{"internal/memnet", nil},
	{"internal/pairs", nil},
	{"internal/process", nil},
	{"internal/testca", nil},

	// Counting.
	{"ring", nil},
	{"algorithms", nil},
	{"counters/notes", []string{"ring"}},
	{"counters/pages", nil}, // memory outside the heap
	{"counters", []string{"algorithms", "counters/notes", "counters/pages", "ring"}},
	{"persist", []string{"algorithms", "counters", "ring", "internal/hashilog"}},

	// Rules.
	{"rules/entries", nil},
	{"rules/document", []string{"algorithms", "rules/entries", "internal/ipaddr", "internal/yaml"}},
	{"rules", []string{"algorithms", "rules/document", "rules/entries", "internal/ipaddr", "internal/yaml"}},
	{"localcache", []string{"algorithms", "counters", "rules", "ring"}},

	// Nodes that know each other and agree.
	{"cluster/secret", nil}, // the cluster's keys and certificates
	{"cluster/peer", []string{"ring"}},
	{"cluster/gossip", []string{"ring"}},
	{"cluster/regions", []string{"ring", "cluster/gossip", "cluster/peer"}},
	{"cluster/agreement", []string{"ring", "rules", "rules/document", "rules/entries"}},
	{"cluster/authority", []string{"ring", "cluster/agreement"}},
	// what Raft reads and writes through
	{"cluster/raftio", []string{"ring", "cluster/authority", "cluster/peer", "internal/hashilog"}},
	{"cluster", []string{"ring", "cluster/agreement", "cluster/authority", "cluster/gossip",
		"cluster/peer", "cluster/raftio", "cluster/regions", "rules", "rules/document", "rules/entries"}},
	{"cluster/partitions", []string{"algorithms", "counters", "counters/notes", "ring", "cluster/agreement",
		"cluster/peer"}},

	// Deciding.
	{"limiter/loads", []string{"rules", "rules/document"}},
	{"limiter/top", []string{"algorithms", "rules"}},
	{"limiter", []string{"algorithms", "counters", "counters/notes", "rules", "rules/document", "rules/entries",
		"ring", "cluster/peer", "cluster/partitions", "limiter/top", "localcache"}},
	{"replay", []string{"algorithms", "counters", "rules", "rules/document", "limiter"}},

	// What was decided.
	{"usage", []string{"ring", "rules", "rules/document", "cluster/peer", "persist"}},
	{"internal/history", []string{"ring", "cluster/peer"}},

	// Doors. All need api, and none imports another one.
	{"api", []string{"rules", "rules/document", "rules/entries", "limiter", "limiter/loads",
		"internal/ipaddr", "internal/tracing", "internal/yaml"}},
	// bodies of the HTTP planes, and rate headers
	{"api/codec", []string{"api", "algorithms", "counters", "rules", "rules/document", "limiter", "limiter/loads"}},
	// Envoy's messages, for two doors
	{"api/rls", []string{"api", "api/codec", "algorithms", "counters", "rules", "rules/document", "limiter"}},
	{"api/framing", nil}, // where requests end, for the HTTP planes
	{"api/ui", nil},      // files for browsers
	{"api/httpd", []string{"api", "api/codec", "api/framing", "api/rls", "rules", "limiter",
		"internal/ipaddr", "internal/tracing"}},
	{"api/envoy", []string{"api", "api/rls", "internal/tracing"}},
	// the Redis protocol
	{"api/resp", []string{"api", "api/codec", "algorithms", "counters", "internal/tracing", "limiter", "rules",
		"rules/document"}},
	{"api/admin", []string{"api", "api/codec", "api/framing", "api/ui", "ring", "rules", "rules/document",
		"rules/entries", "limiter", "limiter/loads", "limiter/top", "cluster", "cluster/gossip", "usage",
		"internal/history"}},
	// for tests
	{"api/apitest", []string{"api", "api/admin", "api/framing", "counters", "ring", "rules", "rules/document",
		"rules/entries", "limiter", "limiter/loads", "cluster", "internal/history", "internal/tracing"}},

	// For users of rlnode; beside this, the standard library only.
	{"client", []string{"internal/ipaddr"}},
	{"client/interceptor", []string{"client"}},

	// Wiring.
	{"node", []string{"algorithms", "counters", "rules", "rules/document", "rules/entries", "ring", "persist",
		"cluster/peer", "cluster/secret", "cluster/gossip", "cluster/regions", "cluster/agreement",
		"cluster/authority", "cluster", "cluster/partitions", "localcache", "limiter", "limiter/loads", "usage",
		"internal/history", "internal/tracing", "api", "api/codec", "api/httpd", "api/envoy", "api/resp",
		"api/admin", "client"}},
	// Flags and commands. Only package node assembles a node; of its parts,
	// commands use only the types that they print, and what works on the files of a
	// node that is stopped.
	{"cmd/rlnode", []string{"node", "rules", "rules/document", "rules/entries", "replay", "persist", "cluster",
		"cluster/secret", "usage", "internal/tracing", "internal/yaml", "api", "api/admin", "client"}},

	// Tests from outside, and modules of their own.
	{"test/simulation", []string{"algorithms", "counters", "rules", "rules/document", "ring", "cluster/agreement",
		"limiter"}},
	{"test/faults", nil},
	{"test/redis", nil},
	{"test/bench", []string{"algorithms", "counters", "rules", "rules/document", "limiter", "client", "node",
		"persist"}},
	{"test/bench/curves", []string{"algorithms", "counters", "rules", "rules/document", "limiter"}},
	{"deploy/check", nil},
	{"deploy/release", nil},
}

// mayImport returns what a package may import, and whether it is in the plan.
func mayImport(pkg string) (allowed []string, known bool) {
	for _, p := range floorPlan {
		if p.name == pkg {
			return p.mayImport, true
		}
	}
	return nil, false
}

// TestFloorPlanPointsDownward: what a package may import stands before it.
func TestFloorPlanPointsDownward(t *testing.T) {
	below := map[string]bool{}
	for _, p := range floorPlan {
		for _, name := range p.mayImport {
			if !below[name] {
				t.Errorf("%s may import %s, which is not below it", p.name, name)
			}
		}
		below[p.name] = true
	}
}

// everywhere lists packages that know nothing of the product. All packages may
// import them except client, which other projects import.
var everywhere = []string{"internal/latency", "internal/metrics", "internal/rawconn",
	"internal/reload", "internal/tasks", "internal/tick", "internal/wake", "internal/wire"}

// standardOnly lists the packages that import nothing but the project and the standard library.
var standardOnly = []string{"algorithms", "counters/notes", "counters/pages", "counters", "limiter/top", "limiter", "client"}

// TestImportsPointDownward: a package imports what it may, and may import
// nothing that it does not.
func TestImportsPointDownward(t *testing.T) {
	used := map[[2]string]bool{} // by package and what it imports
	eachSource(t, func(path string, _ []byte, file *ast.File) {
		pkg := packageOf(path)
		allowed, known := mayImport(pkg)
		if !known {
			t.Errorf("%s: package %s is not in the floor plan", path, pkg)
			return
		}
		for _, spec := range file.Imports {
			name := strings.Trim(spec.Path.Value, `"`)
			local, ours := strings.CutPrefix(name, module)
			used[[2]string{pkg, local}] = true
			switch {
			case ours && packageOf(local+"/x.go") != pkg && !slices.Contains(allowed, local) &&
				(pkg == "client" || !slices.Contains(everywhere, local)):
				t.Errorf("%s: %s may not import %s", path, pkg, local)
			case !ours && slices.Contains(standardOnly, pkg) && strings.Contains(strings.Split(name, "/")[0], "."):
				t.Errorf("%s: %s may import only the standard library, not %s", path, pkg, name)
			}
		}
	})

	for _, p := range floorPlan {
		for _, name := range p.mayImport {
			if !used[[2]string{p.name, name}] {
				t.Errorf("%s may import %s, but does not", p.name, name)
			}
		}
	}
}

func TestFoldersAreFew(t *testing.T) {
	entries, err := os.ReadDir(root)
	expect.NoError(t, err)
	folders := 0
	for _, e := range entries {
		if e.IsDir() && !strings.HasPrefix(e.Name(), ".") && e.Name() != "bin" && e.Name() != "rlnode-data" {
			folders++
		}
	}
	if folders > maxFolders {
		t.Errorf("%d folders in the root; want at most %d", folders, maxFolders)
	}
}

func TestFunctionsFit(t *testing.T) {
	eachSource(t, func(path string, text []byte, file *ast.File) {
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Body == nil {
				continue
			}
			lines := bytes.Count(text[f.Pos()-file.FileStart:f.End()-file.FileStart], []byte("\n"))
			if lines > maxFunctionLines {
				t.Errorf("%s: %s has %d lines; at most %d fit a screen", path, f.Name.Name, lines, maxFunctionLines)
			}
		}
	})
}

// packageOf returns the folder of path; folders inside a package's own
// internal/ or for its tests belong to it.
func packageOf(path string) string {
	dir := filepath.ToSlash(filepath.Dir(path))
	for d := dir; d != "."; d = filepath.ToSlash(filepath.Dir(d)) {
		if _, known := mayImport(d); known {
			return d
		}
	}
	return dir
}

// eachSource calls visit for every Go file of the product, except tests.
func eachSource(t *testing.T, visit func(path string, text []byte, file *ast.File)) {
	t.Helper()
	eachFile(t, func(path string, text []byte, file *ast.File) {
		if !strings.HasSuffix(path, "_test.go") {
			visit(path, text, file)
		}
	})
}

// eachFile calls visit for every Go file of the product and its tests.
func eachFile(t *testing.T, visit func(path string, text []byte, file *ast.File)) {
	t.Helper()
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(root, path)
		if d.IsDir() {
			if skip := []string{".git", "internal/house", "tools", "examples"}; slices.Contains(skip, rel) ||
				d.Name() == "testdata" {
				return filepath.SkipDir
			}
			return nil
		}
		if !strings.HasSuffix(path, ".go") {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, text, parser.SkipObjectResolution|parser.ParseComments)
		if err != nil {
			return err
		}
		seen++
		visit(filepath.ToSlash(rel), text, file)
		return nil
	})
	expect.NoError(t, err)
	if seen == 0 {
		t.Fatal("no source found")
	}
}

// TestZonesAreOurs: time.LoadLocation asks the host's database first, and hosts differ.
func TestZonesAreOurs(t *testing.T) {
	eachSource(t, func(path string, text []byte, _ *ast.File) {
		if bytes.Contains(text, []byte("time.LoadLocation(")) {
			t.Errorf("%s: time.LoadLocation depends on the host; use algorithms.Zone", path)
		}
	})
}

// TestProcessIsTheCommands: a Go program that embeds a node keeps its own
// signals, umask, defaults and memory settings.
func TestProcessIsTheCommands(t *testing.T) {
	commands := []string{"cmd/rlnode", "test/bench", "test/bench/curves", "internal/process", "test/faults"}
	eachSource(t, func(path string, text []byte, file *ast.File) {
		if slices.Contains(commands, packageOf(path)) || file.Name.Name == "main" {
			return
		}
		for _, call := range []string{
			"signal.Notify", ".Umask(", "os.Exit(", "log.Fatal", "slog.SetDefault(",
			"log.SetOutput(", "debug.FreeOSMemory(", "debug.SetGCPercent(",
			"debug.SetMemoryLimit(", "DefaultServeMux", "DefaultRegisterer", "otel.SetErrorHandler(",
		} {
			// The only exception is a call that just the command makes.
			if bytes.Contains(text, []byte(call)) &&
				!(path == "internal/tracing/tracing.go" && call == "otel.SetErrorHandler(") {
				t.Errorf("%s: %s is for commands", path, call)
			}
		}
		if packageOf(path) != "internal/tracing" && bytes.Contains(text, []byte("tracing.LogFailures(")) {
			t.Errorf("%s: tracing.LogFailures is for commands", path)
		}
	})
}

// TestExamplesUseWhatIsPublic: a program outside this module needs only client and node.
func TestExamplesUseWhatIsPublic(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(root, "examples", "*", "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no examples: %v", err)
	}
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		expect.NoError(t, err)
		for _, spec := range file.Imports {
			name, ours := strings.CutPrefix(strings.Trim(spec.Path.Value, `"`), module)
			if ours && !slices.Contains([]string{"client", "node"}, name) && !strings.HasSuffix(path, "_test.go") {
				t.Errorf("%s imports %s", path, name)
			}
		}
	}
}
