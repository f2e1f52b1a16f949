//go:build linux || darwin || freebsd

package main

// Free disk, which only an operating system can tell. On other systems, disk_other.go tells
// nothing.

import "syscall"

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
