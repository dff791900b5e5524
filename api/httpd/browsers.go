package httpd

import (
	"github.com/rlnode/rlnode/api/codec"
)

// fromPage reports whether a page in a browser sent a request to the data plane, which serves no pages. Browsers reveal
// that in two headers that pages can't change. Every POST of a page has an Origin. That alone keeps pages from spending
// quota, even pages whose name leads to this node by DNS rebinding. Sec-Fetch-Site marks requests without an Origin,
// such as those of links and images. Two of its values pass: none is a person who typed the address, and same-origin
// needs a page from this node.
func fromPage(h headerLines) bool {
	if len(h.PeekAll("Origin")) > 0 {
		return true
	}
	for _, value := range h.PeekAll("Sec-Fetch-Site") {
		if site := codec.View(value); site != "none" && site != "same-origin" {
			return true
		}
	}
	return false
}
