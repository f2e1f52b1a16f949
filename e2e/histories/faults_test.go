package histories

import (
	"testing"

	"petstore/e2e/planted"
)

// fault is a change after which the service does not do what it promises.
type fault struct {
	name    string
	file    string
	changes []string // texts, each followed by what stands in its place
}

// plant copies the service with the fault in it, and returns the folder.
func (f fault) plant(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	if err := planted.Copy("../..", folder, f.file, f.changes); err != nil {
		t.Fatal(err)
	}
	return folder
}
