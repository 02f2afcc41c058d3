"""Datasets that are drawn, not recorded. Every one says that it is synthetic."""

from __future__ import annotations

from fedsense.data.card import Card
from fedsense.data.dataset import Generated
from fedsense.data.synthetic.csi import synthetic_csi
from fedsense.data.synthetic.eeg import synthetic_eeg
from fedsense.data.synthetic.gaussians import toy_linear_map, toy_noisy_features
from fedsense.data.synthetic.imu import synthetic_imu

EMBEDDED = "fedsense (embedded, needs no download)"
FLIC = "FLIC: A. Rakotomamonjy et al., 'Personalised federated learning on heterogeneous feature spaces', TMLR 2024"


def _card(name: str, title: str, what: str, client: str, paper: str = EMBEDDED, citation: str = EMBEDDED) -> Card:
    return Card(
        name=name,
        title=title,
        what=what,
        who="nobody: synthetic, every number is drawn",
        licence="as fedsense",
        citation=citation,
        address="comes with fedsense",
        layout="no files",
        sizes="as many clients and samples as you ask for",
        client=client,
        paper=paper,
        synthetic=True,
    )


IMU = Generated(
    _card(
        "synthetic-imu",
        "Synthetic phones and watches",
        "generated phones and watches on different people; eight activities, accelerometer and gyroscope",
        "a made-up person with a device worn somewhere",
    ),
    synthetic_imu,
)
CSI = Generated(
    _card(
        "synthetic-csi",
        "Synthetic Wi-Fi CSI of rooms with people",
        "generated Wi-Fi CSI amplitudes of rooms with 0 to 20 moving people; 1,000 packets by 242 subcarriers",
        "a made-up room with its transmitter and receiver",
    ),
    synthetic_csi,
)
EEG = Generated(
    _card(
        "synthetic-eeg",
        "Synthetic EEG covariances",
        "generated EEG-like covariance features (tangent vectors); every subject has electrodes of its own",
        "a made-up subject with a cap of its own",
    ),
    synthetic_eeg,
)
NOISY_FEATURES = Generated(
    _card(
        "toy-noisy-features",
        "FLIC's toy problem with noisy features",
        "20 Gaussian classes in 5 dimensions; each client has 1 to 10 further features that are noise",
        "some of the classes, with noise features of its own",
        "FLIC",
        FLIC,
    ),
    toy_noisy_features,
)
LINEAR_MAP = Generated(
    _card(
        "toy-linear-map",
        "FLIC's toy problem with linear maps",
        "20 Gaussian classes in 5 dimensions; each client sees them through a random matrix to 3 to 100 dimensions",
        "some of the classes, through a matrix of its own",
        "FLIC",
        FLIC,
    ),
    toy_linear_map,
)
