package house

import (
	"go/ast"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rlnode/rlnode/internal/expect"
)

// logged are the methods that write lines which an operator sees by default,
// and the index of the text among their arguments.
var logged = map[string]int{"Info": 0, "Warn": 0, "Error": 0, "Log": 2, "logOnce": 0, "logMember": 1, "alarm": 0}

// TestLogIsListed: docs/operations.md lists every line that a node may log, and no other.
func TestLogIsListed(t *testing.T) {
	said := map[string]bool{}
	eachSource(t, func(path string, _ []byte, file *ast.File) {
		switch folder, _, _ := strings.Cut(path, "/"); folder {
		case "client", "deploy", "examples", "replay", "test", "tools":
			return // not a node's log
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if call, ok := n.(*ast.CallExpr); ok {
				said[loggedText(call)] = true
			}
			return true
		})
	})
	delete(said, "")

	listed := listedLines(t)
	for _, text := range slices.Sorted(maps.Keys(said)) {
		if !listed[text] {
			t.Errorf("docs/operations.md lacks a line of the log: %s", text)
		}
	}
	for _, text := range slices.Sorted(maps.Keys(listed)) {
		if !said[text] {
			t.Errorf("docs/operations.md has a line that nothing logs: %s", text)
		}
	}
}

// loggedText returns the text that a call logs; empty if it logs none. What is
// not known before stands as NAME.
func loggedText(call *ast.CallExpr) string {
	method, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	index, ok := logged[method.Sel.Name]
	if !ok || len(call.Args) <= index {
		return ""
	}
	text := textOf(call.Args[index])
	if method.Sel.Name == "logMember" {
		text = "NAME " + text
	}
	if strings.Trim(text, "NAME ") == "" {
		return ""
	}
	return text
}

// textOf returns the text of an expression.
func textOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if e.Kind == token.STRING {
			text, _ := strconv.Unquote(e.Value)
			return text
		}
	case *ast.BinaryExpr:
		left, right := textOf(e.X), textOf(e.Y)
		if left != "" && right != "" {
			return left + right
		}
	case *ast.SelectorExpr, *ast.Ident, *ast.IndexExpr:
		return "NAME"
	case *ast.CallExpr: // of fmt.Sprintf
		if len(e.Args) > 0 {
			return strings.ReplaceAll(textOf(e.Args[0]), "%s", "NAME")
		}
	case *ast.CompositeLit: // an event that may recur
		for _, field := range e.Elts {
			pair, ok := field.(*ast.KeyValueExpr)
			if !ok {
				continue
			}
			if key, ok := pair.Key.(*ast.Ident); ok && key.Name == "text" {
				return textOf(pair.Value)
			}
		}
	}
	return ""
}

// listedLines returns the lines of the log that the docs list: the first cells of the table.
func listedLines(t *testing.T) map[string]bool {
	text, err := os.ReadFile(filepath.Join("..", "..", "docs", "operations.md"))
	expect.NoError(t, err)
	_, section, found := strings.Cut(string(text), "\n## What the log says\n")
	if !found {
		t.Fatal("docs/operations.md has no section about the log")
	}
	section, _, _ = strings.Cut(section, "\n## ")

	listed := map[string]bool{}
	for line := range strings.Lines(section) {
		cell, _, found := strings.Cut(strings.TrimPrefix(line, "| `"), "` |")
		if found && strings.HasPrefix(line, "| `") {
			listed[cell] = true
		}
	}
	return listed
}
