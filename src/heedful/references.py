"""The literature that methods and the questions of an audit rest on: one list, whose keys they name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Reference:
    """A publication.

    Args:
        where: venue, without the year; empty if it is on arXiv only as far as known.
        arxiv: its number on arXiv; empty if it has none.
        point: what heedful takes from it, in one sentence.
    """

    authors: str
    year: int
    title: str
    where: str
    arxiv: str
    point: str


REFERENCES: Mapping[str, Reference] = {
    "abnar-2020": Reference(
        "Samira Abnar, Willem Zuidema",
        2020,
        "Quantifying Attention Flow in Transformers",
        "ACL",
        "2005.00928",
        "Attention of several layers can be combined into paths from the output to the tokens.",
    ),
    "adebayo-2018": Reference(
        "Julius Adebayo, Justin Gilmer, Michael Muelly, Ian Goodfellow, Moritz Hardt, Been Kim",
        2018,
        "Sanity Checks for Saliency Maps",
        "NeurIPS",
        "1810.03292",
        "Some explanations hardly change when the weights of the model are randomized, so they cannot explain it.",
    ),
    "alvarez-melis-2018": Reference(
        "David Alvarez-Melis, Tommi S. Jaakkola",
        2018,
        "On the Robustness of Interpretability Methods",
        "ICML Workshop on Human Interpretability in Machine Learning",
        "1806.08049",
        "Similar inputs should have similar explanations.",
    ),
    "bahdanau-2015": Reference(
        "Dzmitry Bahdanau, Kyunghyun Cho, Yoshua Bengio",
        2015,
        "Neural Machine Translation by Jointly Learning to Align and Translate",
        "ICLR",
        "1409.0473",
        "Introduces attention weights, and reads them as an alignment of words.",
    ),
    "barkan-2021": Reference(
        "Oren Barkan, Edan Hauon, Avi Caciularu, Ori Katz, Itzik Malkiel, Omri Armstrong, Noam Koenigstein",
        2021,
        "Grad-SAM: Explaining Transformers via Gradient Self-Attention Maps",
        "CIKM",
        "2204.11073",
        "Attention weights count where the output would grow with them.",
    ),
    "basu-2026": Reference(
        "Abhinaba Basu, Pavan Chakraborty",
        2026,
        "ICE: Intervention-Consistent Explanation Evaluation with Statistical Grounding for LLMs",
        "Findings of EMNLP",
        "2603.18579",
        "Faithfulness depends on how words are removed and must be compared with random explanations by a test.",
    ),
    "chefer-2021": Reference(
        "Hila Chefer, Shir Gur, Lior Wolf",
        2021,
        "Generic Attention-model Explainability for Interpreting Bi-Modal and Encoder-Decoder Transformers",
        "ICCV",
        "2103.15679",
        "Propagates relevance through layers by the positive part of attention times its gradient.",
    ),
    "deyoung-2020": Reference(
        "Jay DeYoung, Sarthak Jain, Nazneen Fatema Rajani, Eric Lehman, Caiming Xiong, Richard Socher, Byron C. "
        "Wallace",
        2020,
        "ERASER: A Benchmark to Evaluate Rationalized NLP Models",
        "ACL",
        "1911.03429",
        "Defines comprehensiveness and sufficiency, and how scores are compared with words that people marked.",
    ),
    "edin-2025": Reference(
        "Joakim Edin, Andreas Geert Motzfeldt, Casper L. Christensen, Tuukka Ruotsalo, Lars Maaløe, Maria Maistro",
        2025,
        "Normalized AOPC: Fixing Misleading Faithfulness Metrics for Feature Attributions Explainability",
        "ACL",
        "2408.08137",
        "The best and the worst possible score differ between models, so a score means little without them.",
    ),
    "fernandes-2022": Reference(
        "Patrick Fernandes, Marcos Treviso, Danish Pruthi, André F. T. Martins, Graham Neubig",
        2022,
        "Learning to Scaffold: Optimizing Model Explanations for Teaching",
        "NeurIPS",
        "2204.10810",
        "An explanation is good if it helps a student to predict what the model does.",
    ),
    "hase-2021": Reference(
        "Peter Hase, Harry Xie, Mohit Bansal",
        2021,
        "The Out-of-Distribution Problem in Explainability and Search Methods for Feature Importance Explanations",
        "NeurIPS",
        "2106.00786",
        "Texts without some of their words are unlike the training texts; a search finds better explanations than "
        "most methods do.",
    ),
    "hedstrom-2024": Reference(
        "Anna Hedström, Leander Weber, Sebastian Lapuschkin, Marina Höhne",
        2024,
        "A Fresh Look at Sanity Checks for Saliency Maps",
        "",
        "2405.02383",
        "How similar two explanations look depends on noise and on the measure of similarity, not only on the model.",
    ),
    "hsia-2024": Reference(
        "Jennifer Hsia, Danish Pruthi, Aarti Singh, Zachary C. Lipton",
        2024,
        "Goodhart's Law Applies to NLP's Explanation Benchmarks",
        "Findings of EACL",
        "2308.14272",
        "A model can be built to score well on comprehensiveness and sufficiency without better explanations.",
    ),
    "jacovi-2020": Reference(
        "Alon Jacovi, Yoav Goldberg",
        2020,
        "Towards Faithfully Interpretable NLP Systems: How Should We Define and Evaluate Faithfulness?",
        "ACL",
        "2004.03685",
        "Faithful and plausible are different things, and faithfulness is a matter of degree.",
    ),
    "jain-2019": Reference(
        "Sarthak Jain, Byron C. Wallace",
        2019,
        "Attention is not Explanation",
        "NAACL-HLT",
        "1902.10186",
        "Other attention weights often give the same prediction.",
    ),
    "kobayashi-2020": Reference(
        "Goro Kobayashi, Tatsuki Kuribayashi, Sho Yokoi, Kentaro Inui",
        2020,
        "Attention is Not Only a Weight: Analyzing Transformers with Vector Norms",
        "EMNLP",
        "2004.10102",
        "What attention adds depends on the vectors that it weights, not only on the weights.",
    ),
    "li-2016": Reference(
        "Jiwei Li, Will Monroe, Dan Jurafsky",
        2016,
        "Understanding Neural Networks through Representation Erasure",
        "",
        "1612.08220",
        "The importance of a word is what the output loses when it is erased.",
    ),
    "liu-2022": Reference(
        "Yibing Liu, Haoliang Li, Yangyang Guo, Chenqi Kong, Jing Li, Shiqi Wang",
        2022,
        "Rethinking Attention-Model Explainability through Faithfulness Violation Test",
        "ICML",
        "2201.12114",
        "A word with a large attention weight may speak against the prediction.",
    ),
    "lundberg-2017": Reference(
        "Scott M. Lundberg, Su-In Lee",
        2017,
        "A Unified Approach to Interpreting Model Predictions",
        "NeurIPS",
        "1705.07874",
        "Shapley values as explanations, and ways to estimate them.",
    ),
    "neely-2022": Reference(
        "Michael Neely, Stefan F. Schouten, Maurits Bleeker, Ana Lucic",
        2022,
        "A Song of (Dis)agreement: Evaluating the Evaluation of Explainable Artificial Intelligence in Natural "
        "Language Processing",
        "HHAI",
        "2205.04559",
        "Explanation methods agree little with one another, so agreement does not show which of them is right.",
    ),
    "ribeiro-2016": Reference(
        "Marco Tulio Ribeiro, Sameer Singh, Carlos Guestrin",
        2016,
        '"Why Should I Trust You?": Explaining the Predictions of Any Classifier',
        "KDD",
        "1602.04938",
        "A linear model that is fitted to outputs of perturbed texts explains the prediction.",
    ),
    "shapley-1953": Reference(
        "Lloyd S. Shapley",
        1953,
        "A Value for n-Person Games",
        "Contributions to the Theory of Games II",
        "",
        "The only division of a gain among players that satisfies four axioms.",
    ),
    "shrikumar-2016": Reference(
        "Avanti Shrikumar, Peyton Greenside, Anna Shcherbina, Anshul Kundaje",
        2016,
        "Not Just a Black Box: Learning Important Features Through Propagating Activation Differences",
        "",
        "1605.01713",
        "Gradients are multiplied by the input to become contributions.",
    ),
    "shrikumar-2017": Reference(
        "Avanti Shrikumar, Peyton Greenside, Anshul Kundaje",
        2017,
        "Learning Important Features Through Propagating Activation Differences",
        "ICML",
        "1704.02685",
        "Differences from a reference replace gradients, which vanish where a unit saturates.",
    ),
    "simonyan-2014": Reference(
        "Karen Simonyan, Andrea Vedaldi, Andrew Zisserman",
        2014,
        "Deep Inside Convolutional Networks: Visualising Image Classification Models and Saliency Maps",
        "ICLR Workshop",
        "1312.6034",
        "The gradient of a class score with respect to the input is a map of importance.",
    ),
    "sixt-2020": Reference(
        "Leon Sixt, Maximilian Granz, Tim Landgraf",
        2020,
        "When Explanations Lie: Why Many Modified BP Attributions Fail",
        "ICML",
        "1912.09818",
        "Explanations that ignore the later layers of a model cannot tell its classes apart.",
    ),
    "sundararajan-2017": Reference(
        "Mukund Sundararajan, Ankur Taly, Qiqi Yan",
        2017,
        "Axiomatic Attribution for Deep Networks",
        "ICML",
        "1703.01365",
        "States completeness: scores add up to the difference from the output for a baseline.",
    ),
    "vaswani-2017": Reference(
        "Ashish Vaswani, Noam Shazeer, Niki Parmar, Jakob Uszkoreit, Llion Jones, Aidan N. Gomez, Łukasz Kaiser, Illia "
        "Polosukhin",
        2017,
        "Attention Is All You Need",
        "NeurIPS",
        "1706.03762",
        "Introduces the transformer, and shows heads that seem to follow syntax.",
    ),
    "wiegreffe-2019": Reference(
        "Sarah Wiegreffe, Yuval Pinter",
        2019,
        "Attention is not not Explanation",
        "EMNLP-IJCNLP",
        "1908.04626",
        "That other weights exist does not mean that the model would have learned them.",
    ),
    "zeiler-2014": Reference(
        "Matthew D. Zeiler, Rob Fergus",
        2014,
        "Visualizing and Understanding Convolutional Networks",
        "ECCV",
        "1311.2901",
        "What the output loses when a part of the input is covered shows what the model uses.",
    ),
    "zhou-2023": Reference(
        "Yilun Zhou, Julie Shah",
        2023,
        "The Solvability of Interpretability Evaluation Metrics",
        "Findings of EACL",
        "2205.08696",
        "The best explanation under a measure can be searched for directly, as is done here for the 100 %.",
    ),
}
"""By the first author and the year, in alphabetical order."""
