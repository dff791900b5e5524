// Package ui is the dashboard: the embedded files that a browser needs, and the
// handler that serves them.
//
// The files are written by hand and served unchanged: HTML, style sheets and
// JavaScript modules, with no build step and nothing from other sites. While
// the page is visible, it fetches JSON from its own node once a second.
//
// app.js asks the node and opens the page of the address. Each page is a
// module, and a template in index.html. confirm.js is the only place that makes
// changes. It first shows what a change would do, as the node says, and in
// which name.
//
// Data from a node is untrusted: callers choose rule names, keys and
// attributes. The page puts them only into text nodes and attributes that it
// creates, never into markup, and the content security policy blocks any script
// in them.
package ui
