//go:build linux

package main

// Tables in the documentation: each stands between two comments there, which hold its name.

import (
	"fmt"
	"os"
	"strings"
)

// tell prints a table, and puts it into the document.
func (b *bench) tell(name string, t *table, note string) {
	t.print(note)
	_, table, _ := strings.Cut(strings.TrimSpace(t.text.String()), "\n\n") // the document has headings of its own
	b.insert(name, table+"\n\n"+wrap(note, "", "")+"\n")
}

// insert replaces what stands between <!-- name --> and <!-- /name --> in the document.
func (b *bench) insert(name, text string) {
	if b.doc == "" {
		return
	}
	old := string(must1(os.ReadFile(b.doc)))
	start, end := fmt.Sprintf("<!-- %s -->\n", name), fmt.Sprintf("<!-- /%s -->\n", name)
	before, rest, found := strings.Cut(old, start)
	_, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		fail("%s has no place for %s", b.doc, name)
	}
	text = before + start + "\n" + strings.Trim(text, "\n") + "\n\n" + end + after
	must(os.WriteFile(b.doc, []byte(text), 0o644)) //nolint:gosec // to be read by anybody
}

// wrap breaks a text into lines of at most 100 characters.
func wrap(text, first, others string) string {
	var lines []string
	line := first
	for word := range strings.FieldsSeq(text) {
		if len([]rune(line))+len([]rune(word)) > 100 {
			lines, line = append(lines, strings.TrimRight(line, " ")), others
		}
		line += word + " "
	}
	return strings.Join(append(lines, strings.TrimRight(line, " ")), "\n")
}
