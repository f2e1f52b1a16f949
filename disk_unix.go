//go:build linux || darwin || freebsd

package main

// Free disk, the kind of a disk, how and since when it is mounted, which only an operating system
// can tell. On other systems, disk_other.go tells nothing.

import (
	"os"
	"runtime"
	"slices"
	"strings"
	"syscall"
)

// diskSpace returns the bytes that are left for files on the disk of a path, and the bytes that it
// has. ok is false if the system does not say, or says what cannot be: FreeBSD subtracts what is
// kept for root, which may leave less than nothing.
func diskSpace(path string) (free, size float64, ok bool) {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		return 0, 0, false
	}
	block := float64(stat.Bsize)
	free = block * float64(stat.Bavail)
	size = block * float64(stat.Blocks)
	return free, size, free >= 0 && size > 0
}

// networkTypes are file systems that may not pass locks on between machines, by the numbers that
// Linux gives them (linux/magic.h, and statfs(2)). FUSE is sshfs, bindfs, and many more.
var networkTypes = map[uint32]string{
	0x00006969: "NFS",
	0x0000517b: "SMB",
	0xff534d42: "SMB",
	0xfe534d42: "SMB",
	0x01021997: "9p",
	0x65735546: "FUSE",
	0x00c36400: "Ceph",
	0x5346414f: "AFS",
	0x0bd00bd0: "Lustre",
	0x47504653: "GPFS",
	0x01161970: "GFS2",
	0x7461636f: "OCFS2",
	0x786f4256: "a virtual machine's shared folder",
}

// networkDisk names the file system of a path if that may not pass locks on, and is "" otherwise.
func networkDisk(path string) string {
	var stat syscall.Statfs_t
	if err := syscall.Statfs(path, &stat); err != nil {
		return ""
	}
	if runtime.GOOS == "linux" {
		return networkTypes[uint32(stat.Type)] //nolint:gosec // types have 32 bits
	}
	const isLocal = 0x1000               // MNT_LOCAL of macOS and FreeBSD
	if uint64(stat.Flags)&isLocal == 0 { //nolint:gosec // flags are bits
		return "a network's file system"
	}
	return ""
}

// mount is a line of /proc/self/mountinfo: see proc_pid_mountinfo(5).
type mount struct {
	point   string
	options []string // of the file system, wherever it is mounted
}

// readMounts returns what is mounted, as this process sees it, or nothing where there is no /proc.
func readMounts() []mount {
	text, _ := os.ReadFile("/proc/self/mountinfo") // empty after an error
	return parseMounts(string(text))
}

func parseMounts(text string) (mounts []mount) {
	escaped := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range strings.Lines(text) {
		where, what, _ := strings.Cut(line, " - ")
		fields, ofSystem := strings.Fields(where), strings.Fields(what)
		if len(fields) < 5 || len(ofSystem) < 3 {
			continue
		}
		mounts = append(mounts, mount{
			point:   escaped.Replace(fields[4]),
			options: strings.Split(ofSystem[2], ","),
		})
	}
	return mounts
}

// isMountedAlone reports whether a file is mounted by itself: its log then lies in another folder.
func isMountedAlone(path string, mounts []mount) bool {
	return slices.ContainsFunc(mounts, func(m mount) bool { return m.point == path })
}

// othersMayWrite reports whether the file system of a file can be written to where it is mounted
// otherwise. emergency_ro is ext4's word for a disk that has failed.
func othersMayWrite(path string, mounts []mount) bool {
	var of mount
	for _, m := range mounts { // of two at one point, the later hides the other
		folder := strings.TrimSuffix(m.point, "/") + "/"
		if strings.HasPrefix(path, folder) && len(m.point) >= len(of.point) {
			of = m
		}
	}
	isReadOnly := slices.Contains(of.options, "ro") || slices.Contains(of.options, "emergency_ro")
	return of.point != "" && !isReadOnly
}

// bootID is what Linux calls this run of the machine, a random id. It is "" where none can be read.
func bootID() string {
	id, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // empty after an error
	return strings.TrimSpace(string(id))
}
