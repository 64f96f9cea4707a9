"""What all OpenVINO backends share: the runtime, and the C++ operations' build."""
