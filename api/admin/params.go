package admin

import (
	"bytes"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/rlnode/rlnode/api"
	"github.com/rlnode/rlnode/api/codec"
)

// A parameter that an endpoint does not have is an error, as a field of a body
// is. Otherwise a misspelled limit_name would reset all limits, and dry_run
// would be written where nothing knows it.

// path returns the endpoint's method and path.
func (e *endpoint) path() string {
	path, _, _ := strings.Cut(e.route, "?")
	return path
}

// params lists the parameters that the endpoint takes. With all, it takes any.
func (e *endpoint) params() (names []string, all bool) {
	_, list, _ := strings.Cut(e.route, "?")
	names = strings.FieldsFunc(list, func(c rune) bool { return c == '&' })
	return names, list == "*"
}

// checkQuery returns the error for a query that the endpoint does not take, or nil.
func (e *endpoint) checkQuery(r *http.Request) *api.Error {
	known, all := e.params()
	if all || r.URL.RawQuery == "" {
		return nil
	}

	// Unlike r.URL.Query, this does not leave out what it can't read.
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return api.Errorf(api.BadValue, "the query can't be read: %s", api.Excerpt(strings.ToValidUTF8(err.Error(), "�")))
	}

	for _, name := range slices.Sorted(maps.Keys(query)) {
		shown := api.Excerpt(strings.ToValidUTF8(name, "�"))
		switch {
		case !slices.Contains(known, name) && len(known) == 0:
			return api.Errorf(api.UnknownField, "there is no parameter %q here: %s takes none", shown, e.path())
		case !slices.Contains(known, name):
			return api.Errorf(api.UnknownField, "there is no parameter %q here: %s takes %s", shown, e.path(),
				strings.Join(known, ", "))
		case len(query[name]) > 1:
			return api.Errorf(api.BadValue, "%s is given %d times", name, len(query[name]))
		}
	}

	return nil
}

// checkConditions returns the error for a condition in a write's headers that
// no endpoint knows, or nil. If it were ignored, the write would be made even
// where the condition does not hold.
func checkConditions(r *http.Request) *api.Error {
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	for _, name := range [...]string{"If-None-Match", "If-Unmodified-Since"} {
		if r.Header.Get(name) != "" {
			return api.Errorf(api.BadValue, "%s is not supported here; writes of rules take If-Match", name)
		}
	}
	return nil
}

// withoutBody returns a handler that refuses a body, except {}: what is meant
// as a parameter must not be ignored.
func withoutBody(
	serve func(http.ResponseWriter, *http.Request) error,
) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		body, err := readAll(r, codec.MaxBody)
		if err != nil {
			return err
		}

		text := bytes.TrimSpace(body)
		if len(text) > 0 && string(text) != "{}" {
			return api.Errorf(api.UnknownField, "the body must be empty: parameters are in the query, as ?name=value")
		}

		return serve(w, r)
	}
}
