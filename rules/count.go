package rules

import (
	"fmt"
	"strings"
)

// refuseManyRules returns an error if src, in block style, has more rules than
// are allowed. It looks only at the lines that begin a rule: the tree of a
// document that is refused anyway would take fifty times the memory of its
// text.
func refuseManyRules(src string) error {
	var begin, line, count int
	indent := -1
	inside := false
	for text := range strings.Lines(src) {
		line++
		item := strings.TrimLeft(text, " ")
		depth := len(text) - len(item)
		isItem := strings.HasPrefix(item, "- ")

		blank := strings.TrimSpace(item) == "" || item[0] == '#'
		switch {
		case blank:
		case depth == 0 && !isItem:
			inside = strings.TrimSpace(text) == "rules:" && count == 0
		case !inside || !isItem:
		case indent < 0:
			begin = line
			indent = depth
			count = count + 1
		case depth == indent:
			count++
		}
	}

	if count <= maxRules {
		return nil
	}

	return Errors{{Line: begin, Column: indent + 1,
		Message: fmt.Sprintf("rules: %d rules; at most %d are allowed", count, maxRules)}}
}
