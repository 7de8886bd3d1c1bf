// Calls CNI plugins by libcni, as CRI-O and containerd 2 do: `libcni-caller VERB CONFDIR BINDIR
// CACHE [ID NETNS]`. Prints the result of ADD as libcni has it, the others print nothing. GC names
// that container alone as one that there is.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"

	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/types"
)

func call(words []string) error {
	verb, confDir, binDir, cache := words[1], words[2], words[3], words[4]
	list, err := libcni.LoadConfList(confDir, "limpet")
	if err != nil {
		return err
	}
	plugins := libcni.NewCNIConfigWithCacheDir([]string{binDir}, cache, nil)
	ctx := context.Background()
	if verb == "STATUS" {
		return plugins.GetStatusNetworkList(ctx, list)
	}
	runtime := &libcni.RuntimeConf{
		ContainerID: words[5],
		NetNS:       words[6],
		IfName:      "eth0",
		Args: [][2]string{
			{"IgnoreUnknown", "1"},
			{"K8S_POD_NAMESPACE", "default"},
			{"K8S_POD_NAME", words[5]},
			{"K8S_POD_INFRA_CONTAINER_ID", words[5]},
			{"K8S_POD_UID", "0c6bdb68-41c2-4dd8-91a7-2b1c0a8f8f6e"},
		},
	}
	switch verb {
	case "ADD":
		result, err := plugins.AddNetworkList(ctx, list, runtime)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(result)
	case "CHECK":
		return plugins.CheckNetworkList(ctx, list, runtime)
	case "DEL":
		return plugins.DelNetworkList(ctx, list, runtime)
	case "GC":
		valid := []types.GCAttachment{{ContainerID: words[5], IfName: "eth0"}}
		return plugins.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: valid})
	}
	return fmt.Errorf("no such verb: %s", verb)
}

func main() {
	if err := call(os.Args); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
