//go:build linux || darwin || freebsd

package main

// Free disk, and the kind of a disk, which only an operating system can tell. On other systems,
// disk_other.go tells nothing.

import (
	"runtime"
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
