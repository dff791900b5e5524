package house

import (
	"go/ast"
	"go/token"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var (
	// foreignNames are names from elsewhere that comments mention and the code does not use.
	foreignNames = strings.Fields(`AppliedIndex ClientHello ClientProvider DevTools ExtAuthz HashiCorp HelpProvider HttpConnectionManager
	JavaScript ListenAndServe LoadLocation SipHash SplitMix64 bbolt memberlist rlnode`)
	goWord       = regexp.MustCompile(`\w+`)
	camelWord    = regexp.MustCompile(`\b()(\w*[a-z][A-Z]\w*)`)
	sentenceName = regexp.MustCompile(`[a-z)]{4}(\.) ([a-z][A-Za-z]+) [a-z]`) // only a name starts a sentence in lower case
)

// TestCommentsNameWhatExists finds names that a renaming left behind: in camel case, or at the start of a sentence or doc comment.
func TestCommentsNameWhatExists(t *testing.T) {
	known, named := map[string]bool{}, map[[3]string]bool{} // a name at the start of a sentence must be in its own folder
	eachFile(t, func(file string, _ []byte, syntax *ast.File) {
		for _, d := range syntax.Decls {
			var doc, name string
			if f, ok := d.(*ast.FuncDecl); ok {
				doc, name = f.Doc.Text(), f.Name.Name
			} else if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.TYPE && len(g.Specs) == 1 {
				doc, name = g.Doc.Text(), g.Specs[0].(*ast.TypeSpec).Name.Name
			}
			if first := goWord.FindString(doc); !strings.HasSuffix(file, "_test.go") && !slices.Contains([]string{"", "A", "The", name}, first) {
				t.Errorf("%s: the doc comment of %s begins with %s", file, name, first)
			}
		}
		for _, group := range syntax.Comments {
			comment := strings.ReplaceAll(group.Text(), "\n", " ")
			for _, m := range append(camelWord.FindAllStringSubmatch(comment, -1), sentenceName.FindAllStringSubmatch(comment, -1)...) {
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
