package house

import (
	"errors"
	"go/ast"
	"go/build"
	"go/parser"
	"go/token"
	"go/types"
	"io/fs"
	"path/filepath"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// TestOtherSystems: what a package declares for Linux, it declares for other
// systems, too. Building the program for each of them would take minutes. So
// each package is checked by itself, without what it imports. Only the errors
// that it does not have on Linux count. Methods and fields that only other
// packages use are not seen.
func TestOtherSystems(t *testing.T) {
	onLinux := checkAll(t, "linux")
	if len(onLinux.exported) == 0 {
		t.Error("there are no packages")
	}
	for _, system := range []string{"darwin", "windows"} {
		found := checkAll(t, system)
		for problem := range found.problems {
			if !onLinux.problems[problem] {
				t.Errorf("on %s: %s", system, problem)
			}
		}
		for name := range onLinux.exported {
			if !found.exported[name] {
				t.Errorf("on %s: there is no %s", system, name)
			}
		}
	}
}

// findings are what a check of all packages finds.
type findings struct {
	problems map[string]bool // errors
	exported map[string]bool // names, each with its package's folder
}

// checkAll checks all packages as if for a system.
func checkAll(t *testing.T, system string) findings {
	t.Helper()
	target, found := build.Default, findings{make(map[string]bool), make(map[string]bool)}
	target.GOOS, target.CgoEnabled = system, false
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case !d.IsDir():
			return nil
		case path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata" || d.Name() == "node_modules"):
			return filepath.SkipDir
		}
		p, err := target.ImportDir(path, 0)
		if none := new(build.NoGoError); errors.As(err, &none) {
			return nil
		} else if err != nil {
			return err
		}
		found.checkAlone(t, path, p.GoFiles)
		return nil
	})
	expect.NoError(t, err)
	return found
}

// checkAlone checks a package without the packages that it imports.
func (f findings) checkAlone(t *testing.T, dir string, names []string) {
	t.Helper()
	positions := token.NewFileSet()
	var files []*ast.File
	for _, name := range names {
		file, err := parser.ParseFile(positions, filepath.Join(dir, name), nil, parser.SkipObjectResolution)
		expect.NoError(t, err)
		files = append(files, file)
	}
	config := types.Config{Importer: noImports{}, Error: func(err error) {
		if !strings.Contains(err.Error(), "could not import") {
			f.problems[err.Error()] = true
		}
	}}
	p, _ := config.Check(dir, positions, files, nil) // Error gets its errors
	for _, name := range p.Scope().Names() {
		if ast.IsExported(name) {
			f.exported[dir+"."+name] = true
		}
	}
}

// noImports knows no packages.
type noImports struct{}

func (noImports) Import(string) (*types.Package, error) { return nil, errors.New("left out") }
