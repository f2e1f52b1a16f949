//go:build linux || darwin || freebsd

package main

import (
	"fmt"
	"testing"
)

// mountLines are lines of /proc/self/mountinfo.
const mountLines = `22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw,errors=remount-ro
30 22 8:2 / /data rw - ext4 /dev/sdb rw
31 22 8:2 / /failed rw - ext4 /dev/sdb rw,emergency_ro
32 22 8:2 /d /read\040only ro,relatime master:1 - ext4 /dev/sdb rw
33 22 8:3 / /old ro - ext4 /dev/sdc ro
34 30 8:2 /d/pets.db /data/pets.db rw - ext4 /dev/sdb rw
35 22 8:2 / /hidden rw - ext4 /dev/sdb rw
36 35 8:3 / /hidden rw - ext4 /dev/sdc ro
a line of another form
`

// TestMountsAreRead: a read-only mount of a file system says nothing of others.
func TestMountsAreRead(t *testing.T) {
	mounts := parseMounts(mountLines)
	for path, want := range map[string]bool{
		"/pets.db": true, "/data/x.db": true, "/database/x.db": true, "/read only/x.db": true,
		"/failed/x.db": false, "/old/x.db": false, "/old/in/x.db": false, "/hidden/x.db": false,
	} {
		wantEqual(t, othersMayWrite(path, mounts), want, "whether others may write to ", path)
	}
	wantEqual(t, othersMayWrite("/pets.db", nil), false, "whether others may, without mountinfo")
	path := databasePath(t)
	writeText(t, path, "")
	alone := fmt.Sprintf("34 30 8:2 /d %s rw - ext4 /dev/sdb rw\n", path)
	wantEqual(t, isMountedAlone(path, parseMounts(alone)), true, "whether it is mounted by itself")
	wantEqual(t, isMountedAlone(path, mounts), false, "whether it is mounted by itself")
}
