package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/api/framing"
)

// router finds the handler for a path as it was sent. Unlike the library of
// net/http, it neither cleans nor decodes a path: a proxy in front that allows
// or denies by path must have seen the path that is answered.
type router struct{ routes []pathRoute }

// pathRoute is a pattern, and the handler for the paths that match it. In a
// pattern, {name} stands for any segment, and a slash at the end for anything
// below.
type pathRoute struct {
	pattern  string
	segments []string
	below    bool
	handler  http.Handler
}

// handle adds a route. Routes that are added first go first.
func (rt *router) handle(pattern string, handler http.Handler) {
	r := pathRoute{pattern: pattern, segments: strings.Split(pattern, "/"), handler: handler}
	last := len(r.segments) - 1
	if pattern != "/" && r.segments[last] == "" {
		r.segments = r.segments[:last]
		r.below = true
	}
	rt.routes = append(rt.routes, r)
}

// find returns the handler for r's path, or nil if there is none. It sets r's
// pattern and path values.
func (rt *router) find(r *http.Request) http.Handler {
	path, _ := framing.SplitTarget(r.RequestURI)
	sent := strings.Split(path, "/")
	for i := range rt.routes {
		route := &rt.routes[i]
		if route.matches(sent, r) {
			r.Pattern = route.pattern
			return route.handler
		}
	}
	return nil
}

// matches reports whether the segments of a path match, and sets r's values of
// the segments that may be any.
func (p *pathRoute) matches(sent []string, r *http.Request) bool {
	if len(sent) < len(p.segments) || len(sent) > len(p.segments) && !p.below {
		return false
	}

	values := make(map[string]string)
	for i, want := range p.segments {
		name, ok := strings.CutPrefix(want, "{")
		if !ok {
			if sent[i] != want {
				return false
			}
			continue
		}

		value, err := url.PathUnescape(sent[i])
		if err != nil || isDots(sent[i]) || value == "" {
			return false
		}
		values[strings.TrimSuffix(name, "}")] = value
	}

	// The handler looks up the rest of the path undecoded, so the rest must not be
	// readable in two ways.
	if p.below && (len(sent) == len(p.segments) || slices.ContainsFunc(sent[len(p.segments):], isOdd)) {
		return false
	}

	for name, value := range values {
		r.SetPathValue(name, value)
	}

	return true
}

// isDots reports whether a segment would lead elsewhere if the path were cleaned.
func isDots(segment string) bool { return segment == "." || segment == ".." }

// isOdd reports whether a segment can be read in two ways.
func isOdd(segment string) bool { return isDots(segment) || strings.Contains(segment, "%") }
