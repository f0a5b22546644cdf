// Device memory, streams and event times behind one small face, so that the commands compile
// without CUDA. There every function that would need a device returns kUnsupported.
#pragma once

#include <cstddef>

#include "tessera/execution.h"
#include "tessera/status.h"

namespace tessera::cli {

/// Makes `device` the one that everything below uses. Call it once, before anything else here.
Status select_device(const Device& device);

/// Owned device memory. Freed memory is kept for the next use until the buffer dies.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept;
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  /// At least `bytes`, 256-byte aligned, content undefined; never null even for 0 bytes.
  Status reserve(size_t bytes);
  /// reserve, then a copy from host memory.
  Status upload(const void* source, size_t bytes);
  Status download(void* target, size_t bytes) const;

  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  void* data_ = nullptr;
  size_t bytes_ = 0;
};

/// An owned stream that does not wait for the default one.
class DeviceStream {
 public:
  DeviceStream() = default;
  ~DeviceStream();
  DeviceStream(const DeviceStream&) = delete;
  DeviceStream& operator=(const DeviceStream&) = delete;

  Status open();
  Status wait() const;
  void* handle() const { return handle_; }

 private:
  void* handle_ = nullptr;
};

/// Device time between two points of a stream, by events.
class DeviceTimer {
 public:
  DeviceTimer() = default;
  ~DeviceTimer();
  DeviceTimer(DeviceTimer&& other) noexcept;
  DeviceTimer& operator=(DeviceTimer&&) = delete;

  Status start(const DeviceStream& stream);
  Status stop(const DeviceStream& stream);
  /// Waits for the stop. Errors of the timed work appear here.
  Status seconds(double* out) const;

 private:
  void* begin_ = nullptr;
  void* end_ = nullptr;
};

}  // namespace tessera::cli
