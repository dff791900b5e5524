package house

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

var (
	quoted   = regexp.MustCompile("`([^`]+)`")
	fileName = regexp.MustCompile(`^[\w*/-]*\w+\*?\.(go|md|js|ts|py|txt|json)$`)
	goName   = regexp.MustCompile(`^(?:(\w+)\.)?([A-Za-z]\w*?)(…|_…)?(?:\(\))?$`)
	camel    = regexp.MustCompile(`[a-z]\w*[A-Z]|^[A-Z]\w*[a-z]`)
	testName = regexp.MustCompile("`((?:Test|Fuzz|Benchmark)[A-Z]\\w*(?:…|_…)?)`")
	listItem = regexp.MustCompile(`^\s*(?:\d+\.|-|\|) `)
)

// declared has what the Go code of the tree declares, and the names that it uses.
type declared struct {
	names   map[string]bool // identifiers, and Type.Name or package.Name
	in      map[string]bool // functions, as file:Name and file:Type.Name
	folders map[string]bool
	files   map[string]bool // by path, and by name alone
}

// TestDocsNameWhatExists finds files and Go names in the map, in the tables of
// functions and in the notes on mechanisms that a renaming left behind.
func TestDocsNameWhatExists(t *testing.T) {
	known := collectDeclared(t)
	notes, err := filepath.Glob(filepath.Join(root, "docs", "design", "*.md"))
	expect.NoError(t, err)
	functions := filepath.Join(root, "docs", "functions.md")
	for _, doc := range append(notes, filepath.Join(root, "docs", "ARCHITECTURE.md"), functions) {
		known.checkDoc(t, filepath.Base(doc), readDoc(t, doc))
	}
	known.checkFunctions(t, readDoc(t, functions))
}

// TestDocsNameTestsThatExist reads the pages for operators, too. Most other
// names in them are of settings and of other programs.
func TestDocsNameTestsThatExist(t *testing.T) {
	known := collectDeclared(t)
	docs, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	expect.NoError(t, err)
	lab, err := filepath.Glob(filepath.Join(root, "docs", "lab", "*.md"))
	expect.NoError(t, err)
	for _, doc := range slices.Concat(docs, lab, []string{filepath.Join(root, "README.md")}) {
		for _, m := range testName.FindAllStringSubmatch(readDoc(t, doc), -1) {
			if !known.hasName(m[1]) {
				t.Errorf("%s: there is no test %s", filepath.Base(doc), m[1])
			}
		}
	}
}

// readDoc returns the text of a document.
func readDoc(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	expect.NoError(t, err)
	return string(text)
}

// checkDoc checks a document, and returns the files that it names. A file
// without a folder is in the root, or in a folder that was named before it in
// the same item or paragraph, or by the item that it is part of; without one, it
// may be anywhere.
func (d *declared) checkDoc(t *testing.T, doc, text string) (named []string) {
	t.Helper()
	var parent, folders []string // of the numbered item, and of the current one
	for line := range strings.Lines(text) {
		indented := strings.HasPrefix(line, " ")
		begins := listItem.MatchString(line)
		if begins || strings.TrimSpace(line) == "" {
			if !indented {
				parent = nil
			}
			folders = slices.Clone(parent)
		}

		for _, m := range quoted.FindAllStringSubmatch(line, -1) {
			switch word := m[1]; {
			case d.folders[word]:
				folders = append(folders, word)
				if begins && !indented {
					parent = append(parent, word)
				}
			case fileName.MatchString(word):
				found, ok := d.findFile(folders, word)
				if !ok {
					t.Errorf("%s: there is no file %s here, nor in any of %q", doc, word, folders)
				}
				named = append(named, found...)
				if strings.Contains(word, "/") {
					folders = append(folders, path.Dir(word))
				}
			case !d.hasName(word):
				t.Errorf("%s: the code has no %s", doc, word)
			}
		}
	}

	return named
}

// checkFunctions checks the tables that say which file has each function. Below
// a headline such as "In `api`", files begin in that folder.
func (d *declared) checkFunctions(t *testing.T, text string) {
	t.Helper()
	base := ""
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "## In `") {
			base = quoted.FindStringSubmatch(line)[1]
		}
		cells := strings.Split(line, "|")
		if len(cells) < 4 {
			continue
		}
		file := quoted.FindStringSubmatch(cells[2])
		for _, m := range quoted.FindAllStringSubmatch(cells[3], -1) {
			if !d.in[file[1]+":"+m[1]] && !d.in[path.Join(base, file[1])+":"+m[1]] {
				t.Errorf("functions.md: %s has no function %s", file[1], m[1])
			}
		}
	}
}

// findFile returns the files of that name in the root and in the folders. ok
// means that there is one or, without any folder, that some file has the name. A
// path may begin below api, cluster or counters.
func (d *declared) findFile(folders []string, name string) (found []string, ok bool) {
	ok = len(folders) == 0 && d.files[name]
	if strings.Contains(name, "/") {
		folders = append([]string{"api", "cluster", "counters"}, folders...)
	}
	for _, folder := range append([]string{""}, folders...) {
		files, _ := filepath.Glob(filepath.Join(root, folder, name))
		for _, file := range files {
			rel, _ := filepath.Rel(root, file)
			found = append(found, filepath.ToSlash(rel))
		}
	}
	return found, ok || len(found) > 0
}

// hasName reports whether the code has the name, if it is one: words without
// capitals may be settings, fields or values.
func (d *declared) hasName(word string) bool {
	m := goName.FindStringSubmatch(word)
	if m == nil || !camel.MatchString(m[2]) || d.files[word] {
		return true
	}
	if m[3] != "" {
		for name := range d.names {
			if strings.HasPrefix(name, m[2]) {
				return true
			}
		}
		return false
	}
	name := m[2]
	if m[1] != "" {
		name = m[1] + "." + m[2]
	}
	return d.names[name]
}

// collectDeclared reads the tree.
func collectDeclared(t *testing.T) *declared {
	t.Helper()
	d := &declared{map[string]bool{}, map[string]bool{}, map[string]bool{}, map[string]bool{}}
	err := filepath.WalkDir(root, func(at string, e fs.DirEntry, err error) error {
		if err == nil && e.IsDir() && (e.Name() == ".git" || e.Name() == "node_modules") {
			return filepath.SkipDir
		}
		rel, _ := filepath.Rel(root, at)
		if err == nil && e.IsDir() {
			d.folders[filepath.ToSlash(rel)] = true
		}
		d.files[filepath.Base(at)] = true
		return err
	})
	expect.NoError(t, err)

	eachFile(t, func(file string, _ []byte, syntax *ast.File) { d.addFile(file, syntax) })
	tests, err := filepath.Glob("*.go") // eachFile leaves out this folder
	expect.NoError(t, err)
	for _, name := range tests {
		syntax, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		expect.NoError(t, err)
		d.addFile(path.Join("internal/house", name), syntax)
	}
	return d
}

// addFile adds what a file declares and uses.
func (d *declared) addFile(file string, syntax *ast.File) {
	of := syntax.Name.Name + "."
	ast.Inspect(syntax, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.Ident:
			d.names[n.Name] = true
		case *ast.FuncDecl:
			name := n.Name.Name
			d.names[of+name], d.in[file+":"+name] = true, true
			if n.Recv != nil {
				name = receiver(n.Recv.List[0].Type) + "." + name
				d.names[name], d.in[file+":"+name] = true, true
			}
		case *ast.TypeSpec:
			d.names[of+n.Name.Name] = true
			d.addMembers(n)
		case *ast.ValueSpec:
			for _, id := range n.Names {
				d.names[of+id.Name] = true
			}
		case *ast.SelectorExpr:
			if x, ok := n.X.(*ast.Ident); ok {
				d.names[x.Name+"."+n.Sel.Name] = true
			}
		}
		return true
	})
}

// addMembers adds the fields of a struct, and the methods of an interface.
func (d *declared) addMembers(spec *ast.TypeSpec) {
	var fields *ast.FieldList
	switch body := spec.Type.(type) {
	case *ast.StructType:
		fields = body.Fields
	case *ast.InterfaceType:
		fields = body.Methods
	default:
		return
	}
	for _, f := range fields.List {
		for _, id := range f.Names {
			d.names[spec.Name.Name+"."+id.Name] = true
		}
	}
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// TestMapShowsThePackages: the floor plan in docs/ARCHITECTURE.md shows each
// package of the one here, and only folders that exist. A line begins with the
// names of folders, up to two spaces. An indented line has folders below the one
// of the last line that is not indented.
func TestMapShowsThePackages(t *testing.T) {
	text := readDoc(t, filepath.Join(root, "docs", "ARCHITECTURE.md"))
	_, plan, _ := strings.Cut(text, "\n## Floor plan\n\n```\n")
	plan, _, found := strings.Cut(plan, "```")
	if !found {
		t.Fatal("docs/ARCHITECTURE.md has no floor plan")
	}

	shown, parent := map[string]bool{}, ""
	for line := range strings.Lines(plan) {
		names, _, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if !strings.HasPrefix(line, " ") {
			parent = ""
		}
		for name := range strings.SplitSeq(names, ", ") {
			folder := path.Join(parent, name)
			shown[folder] = true
			if info, err := os.Stat(filepath.Join(root, folder)); err != nil || !info.IsDir() {
				t.Errorf("the map shows %s, which is no folder", folder)
			}
		}
		if !strings.HasPrefix(line, " ") {
			parent = names
		}
	}
	for _, p := range floorPlan {
		if !shown[p.name] {
			t.Errorf("the map does not show %s", p.name)
		}
	}
}

// kindUse finds an algorithm's kind, or a question about what kinds share.
var kindUse = regexp.MustCompile(
	`\balgorithms\.(?:(?:Sliding|Fixed|First)Window|(?:Token|Leaky|Cell)Bucket|SlidingLog|Concurrency)\b` +
		`|\.(?:IsBucket|Windowed|OnSteadyClock|Divisible)\(\)|\bKind\.Leasable\(\)`)

// TestAlgorithmRecipe: the recipe for an algorithm names each file that asks for
// two kinds or more.
func TestAlgorithmRecipe(t *testing.T) {
	recipes := readDoc(t, filepath.Join(root, "docs", "design", "recipes.md"))
	_, recipe, _ := strings.Cut(recipes, "\n## An algorithm\n")
	recipe, _, _ = strings.Cut(recipe, "\n## ")
	named := collectDeclared(t).checkDoc(t, "recipes.md", recipe)

	eachSource(t, func(file string, text []byte, _ *ast.File) {
		kinds := map[string]bool{}
		for _, use := range kindUse.FindAll(text, -1) {
			kinds[string(use)] = true
		}
		isOfAlgorithms := path.Dir(file) == "algorithms"
		if len(kinds) > 1 && !isOfAlgorithms && !slices.Contains(named, file) {
			t.Errorf("docs/design/recipes.md: the recipe for an algorithm lacks %s", file)
		}
	})
}

// TestAlertsAreExplained: who is paged finds each alert in docs/alerts.md, and no
// other ones.
func TestAlertsAreExplained(t *testing.T) {
	find := func(file, pattern string) (names []string) {
		text, err := os.ReadFile(filepath.Join(root, file))
		expect.NoError(t, err)
		for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(string(text), -1) {
			names = append(names, m[1])
		}
		slices.Sort(names)
		return names
	}

	alerts := find("deploy/prometheus/alerts.yaml", `alert: (\w+)`)
	expect.EqualSlices(t, find("docs/alerts.md", "(?m)^\\| `(Rlnode\\w+)` \\|"), alerts, "alerts in docs/alerts.md")
	if len(alerts) == 0 {
		t.Error("no alert found")
	}
}
