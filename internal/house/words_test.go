package house

import (
	"go/ast"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// foreignNames are names from elsewhere that comments mention and the code does not use.
	foreignNames = strings.Fields(`AppliedIndex ClientHello ClientProvider DevTools ExtAuthz HashiCorp HttpConnectionManager
	JavaScript ListenAndServe LoadLocation MurmurHash3 SipHash SplitMix64 bbolt memberlist rlnode`)
	goWord     = regexp.MustCompile(`\w+`)
	camelWord  = regexp.MustCompile(`\b()(\w*[a-z][A-Z]\w*)`)
	link       = regexp.MustCompile(`\[\*?([A-Z]\w*)(?:\.\w+)?\](?:[^:(]|$)`)
	loneLetter = regexp.MustCompile(`(?:^|[a-z,.;:][ (])([b-hj-z])(?:'s|[ ,.;:)]|$)`)
	// only a name starts a sentence in lower case
	sentenceName = regexp.MustCompile(`[a-z)]{4}(\.) ([a-z][A-Za-z]+) [a-z]`)
)

// TestCommentsNameWhatExists finds names that a renaming left behind: in camel
// case, or at the start of a sentence or doc comment.
func TestCommentsNameWhatExists(t *testing.T) {
	// a name at the start of a sentence must be in its own folder
	known, named := map[string]bool{}, map[[3]string]bool{}
	eachFile(t, func(file string, _ []byte, syntax *ast.File) {
		if !strings.HasSuffix(file, "_test.go") {
			checkDocs(t, file, syntax)
		}
		for _, group := range syntax.Comments {
			comment := strings.ReplaceAll(group.Text(), "\n", " ")
			for _, m := range append(camelWord.FindAllStringSubmatch(comment, -1),
				sentenceName.FindAllStringSubmatch(comment, -1)...) {
				named[[3]string{file, m[1], m[2]}] = true
			}
		}
		ast.Inspect(syntax, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				known[id.Name], known[path.Dir(file)+"."+id.Name] = true, true
			} else if text, ok := n.(*ast.BasicLit); ok {
				for _, word := range goWord.FindAllString(text.Value, -1) {
					known[word] = true
				}
			}
			return true
		})
	})
	for at := range named {
		name := strings.Replace(at[1], ".", path.Dir(at[0])+".", 1) + at[2]
		if !known[name] && !known[strings.TrimSuffix(name, "s")] && !slices.Contains(foreignNames, at[2]) {
			t.Errorf("%s: a comment names %s, which does not exist", at[0], at[2])
		}
	}
}

// checkDocs reports doc comments that begin with another name than that of what
// they document: of functions, types, fields, constants and variables.
func checkDocs(t *testing.T, file string, syntax *ast.File) {
	check := func(doc *ast.CommentGroup, wholeSentence bool, names ...*ast.Ident) {
		first := goWord.FindString(doc.Text())
		isName := slices.ContainsFunc(names, func(id *ast.Ident) bool { return id.Name == first })
		// A field may begin with a sentence: then its first word is no name.
		isWord := first == strings.ToUpper(first[:min(1, len(first))])+strings.ToLower(first[min(1, len(first)):])
		switch {
		case first == "" || isName:
		case wholeSentence && !slices.Contains([]string{"A", "The"}, first), !isWord:
			t.Errorf("%s: the doc comment of %s begins with %s", file, names[0].Name, first)
		}
	}

	ast.Inspect(syntax, func(n ast.Node) bool {
		switch d := n.(type) {
		case *ast.FuncDecl:
			check(d.Doc, true, d.Name)
		case *ast.GenDecl:
			if spec, ok := d.Specs[0].(*ast.TypeSpec); ok && len(d.Specs) == 1 {
				check(d.Doc, true, spec.Name)
			}
		case *ast.ValueSpec:
			check(d.Doc, false, d.Names...)
		case *ast.Field:
			if len(d.Names) > 0 {
				check(d.Doc, false, d.Names...)
			}
		}
		return true
	})
}

// foreignLetters are single letters of formulas, headers and numbers in doc comments, by file.
var foreignLetters = map[string]string{
	"algorithms/sliding.go": "x", "algorithms/wide.go": "b", "api/codec/headers.go": "t", "client/headers.go": "t",
	"test/bench/curves/draw.go": "k", "test/bench/curves/together.go": "n", "deploy/release/main.go": "v",
}

// TestDocCommentsNameParameters finds single letters in the doc comment of a
// function that are in no name of the function: most are former receivers and
// parameters. It also finds links to nothing in the folder.
func TestDocCommentsNameParameters(t *testing.T) {
	names, links := map[string]bool{}, map[[2]string]string{} // by folder and name
	eachFile(t, func(file string, _ []byte, syntax *ast.File) {
		ast.Inspect(syntax, func(n ast.Node) bool {
			if id, ok := n.(*ast.Ident); ok {
				names[path.Dir(file)+"."+id.Name] = true
			}
			return true
		})
		for _, group := range syntax.Comments {
			for _, m := range link.FindAllStringSubmatch(group.Text(), -1) {
				links[[2]string{path.Dir(file), m[1]}] = file
			}
		}
		for _, d := range syntax.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || strings.HasSuffix(file, "_test.go") {
				continue
			}
			own := map[string]bool{}
			ast.Inspect(f, func(n ast.Node) bool {
				if id, ok := n.(*ast.Ident); ok {
					own[id.Name] = true
				}
				return true
			})
			for _, m := range loneLetter.FindAllStringSubmatch(strings.ReplaceAll(f.Doc.Text(), "\n", " "), -1) {
				if !own[m[1]] && foreignLetters[file] != m[1] {
					t.Errorf("%s: the doc comment of %s names %s, which the function does not", file, f.Name.Name, m[1])
				}
			}
		}
	})
	for at, file := range links {
		if !names[at[0]+"."+at[1]] {
			t.Errorf("%s: a comment links to %s, which is not in its folder", file, at[1])
		}
	}
}

// TestPackageCommentsListTheirFiles finds files that a package comment with a
// list of files lacks. A file with a build tag stands for one that is listed.
func TestPackageCommentsListTheirFiles(t *testing.T) {
	lists, files := map[string]string{}, map[string][]string{} // by folder
	eachSource(t, func(file string, text []byte, _ *ast.File) {
		dir, name := path.Split(file)
		switch {
		case name == "doc.go":
			_, lists[dir], _ = strings.Cut(string(text), "// # Files")
		case !strings.HasPrefix(string(text), "//go:build"):
			files[dir] = append(files[dir], name)
		}
	})
	for dir, list := range lists {
		for _, name := range files[dir] {
			if list != "" && !strings.Contains(list, " "+name) {
				t.Errorf("%sdoc.go: the list of files lacks %s", dir, name)
			}
		}
	}
}
