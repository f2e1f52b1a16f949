// Exercise repeat of docs/tour-store.md: a client that adds two pets, and does not give up when a
// response is lost. go -C e2e run ./tour/repeat URL KEY
package main

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"strings"
)

// add adds a pet. It sends the request until there is a response.
func add(url, key, pet string) {
	for {
		request, err := http.NewRequestWithContext(context.Background(), http.MethodPost,
			url+"/pets", strings.NewReader(pet))
		if err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		request.Header.Set("Authorization", "Bearer "+key)
		request.Header.Set("Content-Type", "application/json")
		response, err := http.DefaultClient.Do(request)
		if err == nil {
			_ = response.Body.Close()
			fmt.Println(response.Status)
			return
		}
		fmt.Println("no response, once more:", err)
	}
}

func main() {
	if len(os.Args) != 3 {
		fmt.Println("the address of the service and a key are missing")
		os.Exit(2)
	}
	for range 2 { // two pets, which have the same name
		add(os.Args[1], os.Args[2], `{"name":"Rex","categoryId":1}`)
	}
}
