// Exercise page of docs/tour-store.md: a list that changes while somebody reads its pages.
package main

import (
	"fmt"
	"slices"
)

var ids []int // of the pets that are stored, ascending

// page returns the ids on a page.
func page(number, size int) []int {
	first := min(number*size, len(ids))
	return ids[first:min(first+size, len(ids))]
}

// all reads page after page, until one is empty. between is what others do after each page.
func all(size int, between func()) (read []int) {
	for number := 0; ; number++ {
		found := page(number, size)
		if len(found) == 0 {
			return read
		}
		read = append(read, found...)
		between()
	}
}

// remove removes a pet.
func remove(id int) {
	ids = slices.DeleteFunc(slices.Clone(ids), func(other int) bool { return other == id })
}

func main() {
	ids = []int{1, 2, 3, 4, 5, 6, 7, 8, 9}
	fmt.Println("read:", all(3, func() { remove(2) }))
}
