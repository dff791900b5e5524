package api

import (
	"net/http"
	"strings"

	"github.com/rlnode/rlnode/api/ui"
)

// dashboard answers with the files of the dashboard. Reading them needs no token: the page asks the person for it.
func dashboard(site *ui.Site) func(http.ResponseWriter, *http.Request) error {
	return func(w http.ResponseWriter, r *http.Request) error {
		name := strings.TrimPrefix(r.URL.Path, "/ui/")
		if !site.Serve(w, r, name) {
			return errorf(NotFound, "the dashboard has no file %s", excerpt(strings.ToValidUTF8(name, "�")))
		}
		return nil
	}
}
