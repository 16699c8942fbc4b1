package containerd

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
)

// message makes a message of a struct whose fields have protobuf's tags. The numbers are those of the CRI, version v1.
type message struct{}

func (message) Reset()         {}
func (message) String() string { return "" }
func (message) ProtoMessage()  {}

type (
	empty struct{ message }

	versionResponse struct {
		message
		Version string `protobuf:"bytes,3,opt,name=runtime_version,proto3"`
	}

	statusRequest struct {
		message
		Verbose bool `protobuf:"varint,1,opt,name=verbose,proto3"`
	}
	statusResponse struct {
		message
		Status *runtimeStatus    `protobuf:"bytes,1,opt,name=status"`
		Info   map[string]string `protobuf:"bytes,2,rep,name=info" protobuf_key:"bytes,1,opt,name=key" protobuf_val:"bytes,2,opt,name=value"`
	}
	runtimeStatus struct {
		message
		Conditions []*condition `protobuf:"bytes,1,rep,name=conditions"`
	}
	condition struct {
		message
		Type   string `protobuf:"bytes,1,opt,name=type,proto3"`
		Status bool   `protobuf:"varint,2,opt,name=status,proto3"`
		Reason string `protobuf:"bytes,4,opt,name=message,proto3"`
	}

	// image is ImageStatusRequest, and ImageStatusResponse: the image is there if there is a Spec.
	image struct {
		message
		Spec *imageSpec `protobuf:"bytes,1,opt,name=image"`
	}
	imageSpec struct {
		message
		Image string `protobuf:"bytes,1,opt,name=image,proto3"`
	}

	runRequest struct {
		message
		Config *sandboxConfig `protobuf:"bytes,1,opt,name=config"`
	}
	sandboxConfig struct {
		message
		Metadata     *metadata         `protobuf:"bytes,1,opt,name=metadata"`
		LogDirectory string            `protobuf:"bytes,3,opt,name=log_directory,proto3"`
		Ports        []*portMapping    `protobuf:"bytes,5,rep,name=port_mappings"`
		Annotations  map[string]string `protobuf:"bytes,7,rep,name=annotations" protobuf_key:"bytes,1,opt,name=key" protobuf_val:"bytes,2,opt,name=value"`
		Linux        *linuxConfig      `protobuf:"bytes,8,opt,name=linux"`
	}
	metadata struct {
		message
		Name      string `protobuf:"bytes,1,opt,name=name,proto3"`
		UID       string `protobuf:"bytes,2,opt,name=uid,proto3"`
		Namespace string `protobuf:"bytes,3,opt,name=namespace,proto3"`
		Attempt   uint32 `protobuf:"varint,4,opt,name=attempt,proto3"`
	}
	portMapping struct {
		message
		Container int32 `protobuf:"varint,2,opt,name=container_port,proto3"`
		Host      int32 `protobuf:"varint,3,opt,name=host_port,proto3"`
	}
	linuxConfig struct {
		message
		CgroupParent string `protobuf:"bytes,1,opt,name=cgroup_parent,proto3"`
	}

	// sandboxID is RunPodSandboxResponse, and the request of what is done to a sandbox.
	sandboxID struct {
		message
		ID string `protobuf:"bytes,1,opt,name=pod_sandbox_id,proto3"`
	}
	sandboxResponse struct {
		message
		Status *sandboxStatus `protobuf:"bytes,1,opt,name=status"`
	}
	sandboxStatus struct {
		message
		State   int32           `protobuf:"varint,3,opt,name=state,proto3"` // 0: ready
		Network *sandboxNetwork `protobuf:"bytes,5,opt,name=network"`
	}
	sandboxNetwork struct {
		message
		IP   string   `protobuf:"bytes,1,opt,name=ip,proto3"`
		More []*podIP `protobuf:"bytes,2,rep,name=additional_ips"`
	}
	podIP struct {
		message
		IP string `protobuf:"bytes,1,opt,name=ip,proto3"`
	}

	listResponse struct {
		message
		Items []*listed `protobuf:"bytes,1,rep,name=items"`
	}
	listed struct {
		message
		ID    string `protobuf:"bytes,1,opt,name=id,proto3"`
		State int32  `protobuf:"varint,3,opt,name=state,proto3"`
	}
)

// cri is a client of a runtime: gRPC without its library, which the product does not need.
type cri struct{ http.Client }

func newCRI(socket string) *cri {
	t := &http.Transport{
		Protocols: new(http.Protocols),
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}
	t.Protocols.SetUnencryptedHTTP2(true)
	return &cri{http.Client{Transport: t}}
}

// headerSize is the size of what precedes each message: a byte that says whether it is compressed, and its length.
const headerSize = 5

// call calls a method of a service, RuntimeService or ImageService.
func (c *cri) call(ctx context.Context, method string, in, out protoadapt.MessageV1) error {
	ctx, cancel := context.WithTimeout(ctx, 3*limit)
	defer cancel()
	body, err := proto.Marshal(protoadapt.MessageV2Of(in))
	if err != nil {
		return err
	}
	header := make([]byte, headerSize)
	binary.BigEndian.PutUint32(header[1:], uint32(len(body)))
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://containerd/runtime.v1."+method, bytes.NewReader(append(header, body...)))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("Te", "trailers")
	response, err := c.Do(request)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	// An answer without a message has no trailers: they are headers.
	trailer := response.Trailer
	if trailer.Get("Grpc-Status") == "" {
		trailer = response.Header
	}
	if status := trailer.Get("Grpc-Status"); status != "0" {
		why, _ := url.PathUnescape(trailer.Get("Grpc-Message"))
		return fmt.Errorf("%s: status %q: %s", method, status, why)
	}
	if len(answer) < headerSize {
		return fmt.Errorf("%s: an answer of %d bytes", method, len(answer))
	}
	return proto.Unmarshal(answer[headerSize:], protoadapt.MessageV2Of(out))
}
