package document

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/internal/ipaddr"
	"github.com/rlnode/rlnode/internal/yaml"
)

// commonNames are attributes that many documents use. None of them is taken for
// a misspelling of another.
var commonNames = []string{
	"ip", "client_ip", "user", "username", "user_id", "uid", "id", "email", "phone", "account", "tenant", "team", "org",
	"organization", "customer", "project", "workspace", "session", "device", "token", "key", "api_key", "app", "client",
	"client_id", "service", "endpoint", "path", "route", "method", "host", "domain", "resource", "operation", "action",
	"model", "mode", "plan", "tier", "role", "region", "country", "city", "user_agent", "version", "channel", "name",
}

// namePlace is a place where a document names an attribute.
type namePlace struct {
	path string
	pos  yaml.Pos
}

// eachName yields every place where d names an attribute.
func (d *Document) eachName(yield func(name string, at namePlace)) {
	d.eachCondition(func(c *Condition, at namePlace, _ string) { yield(c.Attribute, at) })

	for i, r := range d.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		for j, name := range r.Absent {
			yield(name, namePlace{fmt.Sprintf("%s.absent[%d]", path, j), r.position("absent")})
		}

		for j, part := range r.Key {
			for _, name := range part {
				yield(name, namePlace{fmt.Sprintf("%s.key[%d]", path, j), r.position("key")})
			}
		}

		if r.Cost != nil {
			yield(r.Cost.By, namePlace{path + ".cost.by", r.position("cost")})
		}
	}

	for _, g := range d.Subjects {
		yield(g.Attribute, namePlace{keyPath("subjects", g.Attribute), g.pos})
	}

	for _, p := range d.Profiles {
		for _, s := range p.Sources {
			yield(s.Attribute, namePlace{keyPath(keyPath("profiles", p.Name), s.Attribute), p.pos})
		}
	}
}

// warnNames looks for misspelled attributes: those that are named only once,
// and whose names are almost those of others. A document that declares its
// attributes has none: others are mistakes there.
func (d *Document) warnNames(w *collector) {
	if d.declared != nil {
		return
	}
	uses := map[string]int{}
	first := map[string]namePlace{}
	d.eachName(func(name string, at namePlace) {
		uses[name]++
		if uses[name] == 1 {
			first[name] = at
		}
	})

	names := slices.Sorted(maps.Keys(uses))
	known := slices.Concat(names, commonNames)
	for _, name := range names {
		if uses[name] > 1 || slices.Contains(commonNames, name) {
			continue
		}
		if other := nearName(name, known); other != "" {
			at := first[name]
			w.add(at.pos, at.path,
				"nothing else is called %q; did you mean %s? List the attributes under attributes: to be sure",
				Shorten(name), Shorten(other))
		}
	}
}

// nearName returns the name in known that name probably stands for, or "".
func nearName(name string, known []string) string {
	best, distance := "", 3
	for _, other := range known {
		// Short names may be close to each other by chance: uses may be a misspelled
		// user, but ip is not a misspelled id.
		most := 2
		shorter := min(len(name), len(other))
		if shorter <= 2 && len(name) == len(other) {
			most = 0
		} else if shorter <= 4 {
			most = 1
		}

		if other == name || len(name)-len(other) > most || len(other)-len(name) > most || len(name) > maxNameBytes {
			continue
		}

		n := editDistance(strings.ToLower(name), strings.ToLower(other))
		if n <= most && n < distance {
			best, distance = other, n
		}
	}

	return best
}

// eachCondition yields every condition of d, with its place. key is match or
// not for a rule's condition, and empty for one of an entry of a list.
func (d *Document) eachCondition(yield func(c *Condition, at namePlace, key string)) {
	yieldAll := func(list []Condition, path string, pos yaml.Pos, key string) {
		for i := range list {
			yield(&list[i], namePlace{keyPath(path, list[i].Attribute), pos}, key)
		}
	}

	for i, r := range d.Rules {
		path := fmt.Sprintf("rules[%d]", i)
		yieldAll(r.Match, path+".match", r.position("match"), "match")
		yieldAll(r.Not, path+".not", r.position("not"), "not")
	}

	for i, list := range [...][]*ListEntry{d.Deny, d.Allow} {
		for j, e := range list {
			yieldAll(e.Match, fmt.Sprintf("lists.%s[%d]", [...]string{"deny", "allow"}[i], j), d.positions["lists"], "")
		}
	}
}

// warnValues looks for values of conditions that are empty, or were meant to exclude something.
func (d *Document) warnValues(w *collector) {
	d.eachCondition(func(c *Condition, at namePlace, key string) {
		instead := ""
		if key == "match" {
			instead = ", or write it under not"
		}

		for _, v := range c.Values {
			if key != "not" {
				warnEmpty(w, at.pos, at.path, v)
			}
			if strings.HasPrefix(v, "!") {
				w.add(at.pos, at.path, "%q is compared as it stands, with its !; leave out the !%s",
					Shorten(v), instead)
			}
		}
	})
}

// warnExact warns about a value, in a place without patterns, that is empty or
// was meant as a pattern.
func warnExact(w *collector, at yaml.Pos, path, value string) {
	warnEmpty(w, at, path, value)
	_, isRange := ipaddr.ParsePrefix(value)
	if isRange || strings.Contains(value, "*") {
		w.add(at, path, "%q is compared as it stands: here a value is no pattern, as it is in match, not and lists",
			Shorten(value))
	}
}

// warnEmpty warns about a value that no check has: an attribute with an empty value is absent.
func warnEmpty(w *collector, at yaml.Pos, path, value string) {
	if value == "" {
		w.add(at, path, `"" never matches: an attribute whose value is empty is absent`)
	}
}
